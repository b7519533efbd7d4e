"""What pytest must not import: kernels for GPUs need Triton, and hold no examples."""

collect_ignore_glob = ["src/lowchurn/nets/_kernels/*_gpu*.py"]
