"""Databases for the tests: a PostgreSQL server of their own and a local Spark."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager

import ibis
import pytest

# Tiny tables: one partition, and no code that is compiled for each query.
SPARK = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@contextmanager
def postgres_server():
    """The folder of the socket of a new server, which ends with the tests; it refuses to run as root."""
    programs = [_program(name) for name in ("initdb", "pg_ctl")]
    if None in programs or importlib.util.find_spec("psycopg") is None:
        pytest.skip("needs a PostgreSQL server (initdb, pg_ctl) and psycopg")
    initdb, pg_ctl = programs
    place = tempfile.mkdtemp(prefix="lowchurn-pg-")
    who = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
    if who:
        shutil.chown(place, "nobody", "nogroup")
    data = os.path.join(place, "data")

    def call(*command):
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60, **who)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        call(initdb, "-D", data, "-A", "trust", "-U", "auditor", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses='' -c fsync=off -k {place}"
        call(pg_ctl, "-D", data, "-w", "-l", os.path.join(place, "log"), "-o", options, "start")
        # It ends with its input, so that no server is left where the tests are killed.
        end = f"cat > /dev/null; {pg_ctl} -D {data} -m immediate stop > /dev/null; rm -rf {place}/*"
        with subprocess.Popen(["sh", "-c", end], stdin=subprocess.PIPE, cwd="/", start_new_session=True, **who):
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _program(name):
    """Debian keeps the programs of the server outside the path."""
    folders = [os.path.join("/usr/lib/postgresql", version, "bin") for version in _versions()]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


def _versions():
    return sorted(os.listdir("/usr/lib/postgresql"), reverse=True) if os.path.isdir("/usr/lib/postgresql") else []


@contextmanager
def spark_session():
    """A local Spark."""
    pyspark = pytest.importorskip("pyspark.sql", reason="needs the spark extra and Java (make test-spark)")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = pyspark.SparkSession.builder
    for name, value in SPARK.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def connection(kind, place):
    """A connection of Ibis to a database of a kind."""
    if kind == "duckdb":
        return ibis.duckdb.connect()
    if kind == "spark":
        return ibis.pyspark.connect(place)
    return ibis.postgres.connect(host=place, user="auditor", database="postgres")
