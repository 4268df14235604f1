#!/usr/bin/env python3
"""Runs the shards of a sweep as tasks on a Ray cluster, and collects their files.

    tools/sweep_ray.py SWEEP.toml --out DIR [--address HOST:PORT] [--shards N] [--merge ROWS.jsonl]

The files that the sweep needs are sent to the nodes; the program must be installed on each node (the same build
everywhere: rows of another build are refused). A shard whose worker is killed is taken up again, by default up to three
times. On the same node it continues where it was, because each node keeps the rows of its shards in --work until they
have been collected. A driver that is started again with the same --out continues as well.

Needs the package `ray`, without extras. See docs/sweeps.md.
"""

import argparse
import ctypes
import hashlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import ray


class ShardStopped(Exception):
    """The program was ended by a signal: the shard is taken up again."""


class ShardRefused(Exception):
    """The program refused the sweep: another attempt would end in the same way."""


def die_with_worker():
    """Makes the kernel end the program when its Ray worker dies, so that no orphan keeps the shard's file locked."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def sweep_files(program, sweep):
    """Returns the contents of the files that `sweep` needs, by path, the sweep file first."""
    listed = subprocess.run([program, "sim", "sweep", sweep, "--files"], stdout=subprocess.PIPE, text=True)
    if listed.returncode != 0:
        raise SystemExit(listed.returncode)
    return {os.path.abspath(path): pathlib.Path(path).read_bytes() for path in listed.stdout.splitlines()}


def place(directory, files, traces):
    """Writes `files` below `directory` with their relative positions. Returns the paths of the sweep and of the
    directory of recorded links."""
    root = os.path.commonpath([os.path.dirname(path) for path in files])
    for path, content in files.items():
        target = directory / os.path.relpath(path, root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    sweep = directory / os.path.relpath(next(iter(files)), root)
    return sweep, traces and directory / os.path.relpath(traces, root)


def compute(job, shard, known):
    """Computes `shard` on this node. `known` is the content of the shard's file that the driver has, or empty.
    Returns the content of the complete file and the name of the node."""
    name = "shard-{}-of-{}.jsonl".format(*shard.split("/"))
    # One directory for each shard: the program refuses a directory with rows that do not belong to its own.
    rows = pathlib.Path(job["work"]) / job["digest"] / name.removesuffix(".jsonl")
    rows.mkdir(parents=True, exist_ok=True)
    if known and not (rows / name).exists():
        (rows / name).write_bytes(known)
    with tempfile.TemporaryDirectory(prefix="pleach-sweep-") as scratch:
        sweep, traces = place(pathlib.Path(scratch), job["files"], job["traces"])
        command = [job["program"], "sim", "sweep", sweep, "--shard", shard, "--out", rows, "--jobs", str(job["jobs"])]
        environment = {**os.environ, **({"PLEACH_TRACES": str(traces)} if traces else {})}
        ended = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            preexec_fn=die_with_worker,
        )
    host = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
    if ended.returncode < 0:
        raise ShardStopped(f"shard {shard} on {host}: the program was ended by signal {-ended.returncode}")
    if ended.returncode != 0:
        lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise ShardRefused(f"shard {shard} on {host}: {lines[-1]}")
    notes = [line for line in ended.stderr.splitlines() if line.startswith("note: ")]
    content = (rows / name).read_bytes()
    shutil.rmtree(rows)
    return content, host, notes


def digest(contents):
    """Returns a hash of `contents`, in order."""
    hashes = [hashlib.sha256(content).digest() for content in contents]
    return hashlib.sha256(b"".join(hashes)).hexdigest()[:16]


def store(path, content):
    """Writes `path` completely or not at all."""
    partial = path.with_name(f".{path.name}.new")
    partial.write_bytes(content)
    partial.replace(path)


def begun(out):
    """Returns the number of shards of the files in `out`, as an earlier call has divided the sweep. 0 if there are none."""
    counts = {int(path.stem.rsplit("-", 1)[1]) for path in out.glob("shard-*-of-*.jsonl")}
    return counts.pop() if len(counts) == 1 else 0


def collect(job, options, shards):
    """Runs all shards and writes their files into `options.out`. Returns the errors."""
    task = ray.remote(compute).options(
        num_cpus=options.jobs, max_retries=options.retries, retry_exceptions=[ShardStopped],
    )
    job_ref = ray.put(job)
    running, errors = {}, []
    for number in range(1, shards + 1):
        path = options.out / f"shard-{number}-of-{shards}.jsonl"
        known = path.read_bytes() if path.exists() else b""
        running[task.remote(job_ref, f"{number}/{shards}", known)] = path
    done = 0
    while running:
        [ready], _ = ray.wait(list(running), num_returns=1)
        path = running.pop(ready)
        try:
            content, host, notes = ray.get(ready)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            errors.append(f"{path.name}: {str(cause).strip().splitlines()[0]}")
            continue
        store(path, content)
        done += 1
        for note in notes:
            print(f"{host}: {note}", file=sys.stderr)
        print(f"{done} of {shards} shards: {path.name} from {host}", file=sys.stderr, flush=True)
    return errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", help="sweep file")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="directory for the shard files")
    parser.add_argument("--address", default="auto", help="Ray cluster [default: the one of this node]")
    parser.add_argument("--shards", type=int, help="number of shards [default: that of the files in DIR, or 4 for each task that runs at once]")
    parser.add_argument("--jobs", type=int, default=1, help="cores for each shard [default: 1]")
    parser.add_argument("--retries", type=int, default=3, help="times that a stopped shard is taken up again [default: 3]")
    parser.add_argument("--program", default=shutil.which("pleach"), help="path of pleach on all nodes")
    parser.add_argument("--work", default=f"/var/tmp/pleach-sweeps-{os.getuid()}",
                        help="directory on the nodes for rows of unfinished shards")
    parser.add_argument("--merge", type=pathlib.Path, help="file for the rows of all shards; also prints the table")
    options = parser.parse_args()
    if not options.program:
        parser.error("pleach is not in the PATH: name it with --program")
    if options.jobs < 1 or options.retries < 0 or (options.shards is not None and options.shards < 1):
        parser.error("--jobs and --shards begin at 1, --retries at 0")

    files = sweep_files(options.program, options.sweep)
    options.out.mkdir(parents=True, exist_ok=True)
    traces = os.environ.get("PLEACH_TRACES")
    traces = traces and os.path.abspath(traces)
    job = {
        "program": options.program,
        "jobs": options.jobs,
        "work": options.work,
        "files": files,
        # Traces are sent only if the sweep uses them.
        "traces": traces if traces and any(path.startswith(traces + os.sep) for path in files) else None,
        # Rows of another sweep or program are refused, so each has a directory of its own on a node.
        "digest": digest([pathlib.Path(options.program).read_bytes(), *files.values()]),
    }
    ray.init(address=options.address, log_to_driver=False, logging_level="warning")
    cores = int(ray.cluster_resources().get("CPU", 0))
    if cores < options.jobs:
        raise SystemExit(f"sweep_ray.py: the cluster has {cores} cores, but --jobs asks for {options.jobs}")
    shards = options.shards or begun(options.out) or 4 * (cores // options.jobs)
    errors = collect(job, options, shards)
    ray.shutdown()
    for error in errors:
        print(f"sweep_ray.py: {error}", file=sys.stderr)
    if errors:
        raise SystemExit(1)
    if options.merge:
        raise SystemExit(subprocess.run([options.program, "sim", "merge", options.out, "--out", options.merge]).returncode)


if __name__ == "__main__":
    main()
