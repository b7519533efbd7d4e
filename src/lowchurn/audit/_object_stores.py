"""Parquet files at an address such as ``s3://bucket/folder``, read by Arrow where they lie.

Arrow has its readers built in, so nothing is downloaded but the data.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from lowchurn._terminal import one_line
from lowchurn.audit._connections import refuse_secrets
from lowchurn.audit._paths import PARQUET_ENDINGS

# What Arrow reads, and where it takes credentials from.
CREDENTIALS = {
    "s3": "Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or the machine's role, and "
    "the address of another store than Amazon's from AWS_ENDPOINT_URL",
    "gs": "Credentials come from GOOGLE_APPLICATION_CREDENTIALS or the machine's role; a public bucket is "
    "gs://anonymous@bucket",
    "abfss": "Credentials come from AZURE_CLIENT_ID and its like, or the machine's identity",
    "hf": "The token comes from HF_TOKEN or the login of huggingface_hub, which has to be installed",
    "hdfs": "Hadoop's libraries have to be installed: HADOOP_HOME and CLASSPATH",
}
PATIENCE = "retry_limit_seconds"  # of Google's store, which tries for a quarter of an hour by default
SECONDS = 30


def is_readable(address: str) -> bool:
    """Whether Arrow has a reader for such addresses."""
    return urlsplit(address).scheme in CREDENTIALS


def open_dataset(side: str, address: str, partitions: bool) -> tuple[pa_dataset.Dataset, dict[str, pa.Schema]]:
    """The Parquet file, or all Parquet files below the folder, at an address; and the schema of each."""
    scheme = urlsplit(address).scheme
    refuse_secrets("the address of a table", address, CREDENTIALS[scheme])
    patient = scheme == "gs" and PATIENCE not in address
    limit = f"{'&' if '?' in address else '?'}{PATIENCE}={SECONDS}" if patient else ""
    try:
        store, place = pa_fs.FileSystem.from_uri(address + limit)
        files = _files(store, place)
        schemas = {file: pq.read_schema(file, filesystem=store) for file in files}
        if files:
            how = "hive" if partitions else None
            found = pa_dataset.dataset(files, filesystem=store, format="parquet", partitioning=how)
    except Exception as error:
        raise ValueError(
            f"audit: cannot read {address!r} for the {side} table: {one_line(error)}. {CREDENTIALS[scheme]}."
        ) from error
    if not files:
        raise ValueError(
            f"audit: cannot read {address!r} for the {side} table: there is no such Parquet file, and no folder of "
            ".parquet files."
        )
    with suppress(pa.ArrowException):  # columns whose types differ are refused where they are used
        found = found.replace_schema(pa.unify_schemas([found.schema, *schemas.values()], promote_options="permissive"))
    return found, schemas


def _files(store: pa_fs.FileSystem, place: str) -> list[str]:
    info = store.get_file_info(place)
    if info.type == pa_fs.FileType.File:
        return [place]
    if info.type == pa_fs.FileType.NotFound:
        return []
    below = store.get_file_info(pa_fs.FileSelector(place, recursive=True))
    return sorted(f.path for f in below if f.type == pa_fs.FileType.File and f.path.lower().endswith(PARQUET_ENDINGS))
