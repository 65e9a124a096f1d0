"""From a name to logits."""
