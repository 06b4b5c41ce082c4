"""The yardstick: an ADM UNet and its training step in PyTorch, as fast as PyTorch makes them."""
