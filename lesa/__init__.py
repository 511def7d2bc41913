"""Make a pretrained decoder-only language model deeper (LESA, arXiv 2502.13794)."""

__version__ = "0.1.0"
