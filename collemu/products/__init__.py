"""How each family of accumulation models meets its kernels; `collemu.multiply` is the way in."""
