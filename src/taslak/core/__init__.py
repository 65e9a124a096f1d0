"""The mathematics: drafts, sampling, noise, verification, counts. No models, no files, no clocks."""
