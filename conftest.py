"""What pytest must not import: kernels for GPUs need Triton, and hold no examples; examples whose extra is missing."""

from importlib.util import find_spec

collect_ignore_glob = ["src/lowchurn/nets/_kernels/*_gpu*.py"]
if find_spec("transformers") is None or find_spec("datasets") is None:
    collect_ignore_glob += ["src/lowchurn/integrations/huggingface.py"]
    collect_ignore_glob += ["tests/integrations/tiny.py", "tests/integrations/two_processes.py"]
if find_spec("mlflow") is None:
    collect_ignore_glob += ["src/lowchurn/integrations/mlflow.py"]
