"""taslak: lossless speculative decoding of language models."""
