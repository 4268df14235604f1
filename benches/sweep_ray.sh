#!/usr/bin/env bash
# `./dev bench sweep-ray`: a sweep on a Ray cluster of two nodes, compared with the same sweep in one process.
#
# 1. One process computes all cases.
# 2. The cluster computes them in eight shards. The merged rows must be the same bytes.
# 3. The cluster computes them again, and a worker is killed while it computes a shard. The shard must be continued, and
#    the merged rows must be the same bytes.
# 4. The cluster computes them again, and the second node is killed. The rows must be the same bytes.
#
# Ray (PyPI) is installed into a virtual environment below target/. Both nodes run in a namespace of processes and of the
# network that has only the loopback device, so nothing of them is reachable from outside or remains at the end.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$(realpath "${PLEACH_BIN:-$here/target/release/pleach}")
venv=$here/target/ray-venv
RAY=2.60.0
cases=${CASES:-2000}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

if [ "${1:-}" != inside ]; then
    if ! "$venv/bin/python" -c "import ray; assert ray.__version__ == '$RAY'" 2>/dev/null; then
        echo "installing ray $RAY into $venv" >&2
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check "ray==$RAY"
    fi
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(--map-root-user)
    # Paths of Ray's sockets must be short.
    work=$(mktemp -d /tmp/plr-XXXXXX)
    status=0
    PLEACH_BIN=$bin WORK=$work unshare "${as_root[@]}" --net --pid --fork --mount-proc --kill-child "$0" inside || status=$?
    if [ "$status" = 0 ]; then rm -rf "$work"; else echo "logs: $work" >&2; fi
    exit "$status"
fi

work=$WORK
python=$venv/bin/python
ip link set lo up
cd "$work"
cat >base.toml <<'TOML'
name = "sweep-ray"
duration = "2s"
[[link]]
name = "dsl"
rate = "2Mbit"
delay = "7ms"
[[link]]
name = "lte"
rate = "2Mbit"
delay = "20ms"
[tunnel]
policy = "adaptive"
[[traffic]]
kind = "tcp"
name = "download"
[[traffic]]
kind = "ping"
name = "ping"
TOML
cat >sweep.toml <<TOML
name = "sweep-ray"
base = "base.toml"
warm_up = "500ms"
draws = $((cases / 2))
[vary]
link.dsl.rate = { draw = "log", from = "1Mbit", to = "4Mbit" }
link.lte.delay = { draw = "log", from = "5ms", to = "80ms" }
link.lte.loss = { draw = "log", from = 0.0001, to = 0.01, chance = 0.5 }
tunnel.policy = ["adaptive", "weighted"]
TOML

start=$SECONDS
"$bin" sim sweep sweep.toml --out one 2>one.log
"$bin" sim merge one --out one.jsonl
echo "one process: $cases cases in $((SECONDS - start)) s"

# A node of the cluster: ADDRESS, options.
node() {
    local address=$1
    shift
    RAY_DISABLE_IMPORT_WARNING=1 "$venv/bin/ray" start --block --node-ip-address="$address" --num-cpus=1 --num-gpus=0 \
        --object-store-memory=80000000 --disable-usage-stats "$@" >"node-$address.log" 2>&1 &
}

# Waits until the cluster has this number of cores.
cores() {
    "$python" - "$1" <<'PY'
import sys, time, ray
ray.init(address="127.0.0.1:6399", log_to_driver=False, logging_level="error")
deadline = time.monotonic() + 120
while int(ray.cluster_resources().get("CPU", 0)) != int(sys.argv[1]):
    if time.monotonic() > deadline:
        sys.exit(f"the cluster has {ray.cluster_resources()}")
    time.sleep(0.2)
PY
}

drive() {
    "$python" "$here/tools/sweep_ray.py" sweep.toml --address 127.0.0.1:6399 --program "$bin" --work "$work/nodes" \
        --shards 8 "$@"
}

# Prints the process id of a program that computes a shard, once its file has some rows, and not nearly all.
busy_program() {
    local file pid number
    for _ in $(seq 6000); do
        for file in nodes/*/*/shard-*.jsonl; do
            [ -s "$file" ] || continue
            number=$(wc -l <"$file")
            [ "$number" -ge 1 ] && [ "$number" -lt $((cases / 8 - cases / 40)) ] || continue
            for pid in $(pgrep -f -- "--out $work/nodes/"); do
                if tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qx "$(basename "$file" .jsonl | sed 's,shard-\(.*\)-of-,\1/,')"; then
                    echo "$pid"
                    return
                fi
            done
        done
        read -rt 0.01 <> <(:) || true
    done
    fail "no shard was seen while it was computed"
}

start=$SECONDS
node 127.0.0.1 --head --port=6399 --include-dashboard=false --temp-dir="$work/ray"
for _ in $(seq 600); do
    (exec 3<>/dev/tcp/127.0.0.1/6399) 2>/dev/null && break
    read -rt 0.1 <> <(:) || true
done
node 127.0.0.2 --address=127.0.0.1:6399
second=$!
cores 2 || fail "the cluster did not start: $work/node-127.0.0.1.log"
echo "cluster of two nodes: up after $((SECONDS - start)) s"

start=$SECONDS
drive --out ray --merge ray.jsonl 2>ray.log || fail "$(tail -n 3 ray.log)"
cmp one.jsonl ray.jsonl || fail "the rows differ"
for address in 127.0.0.1 127.0.0.2; do
    grep -q "($address)" ray.log || fail "node $address has computed nothing"
done
echo "Ray, two nodes, 8 shards: the same bytes, $((SECONDS - start)) s"

start=$SECONDS
drive --out killed --merge killed.jsonl 2>killed.log &
driver=$!
program=$(busy_program)
worker=$(awk '/^PPid:/ { print $2 }' "/proc/$program/status")
kill -KILL "$worker"
wait "$driver" || fail "$(tail -n 3 killed.log)"
cmp one.jsonl killed.jsonl || fail "the rows differ after a worker was killed"
grep "cases are already there" killed.log || fail "the shard of the killed worker was not continued"
echo "Ray, a worker killed: the same bytes, $((SECONDS - start)) s"

start=$SECONDS
drive --out lost --merge lost.jsonl 2>lost.log &
driver=$!
busy_program >/dev/null
raylet=$(pgrep -f -- 'raylet/raylet .*--node_ip_address=127.0.0.2' | head -n 1)
kill -KILL "$raylet" "$second"
wait "$driver" || fail "$(tail -n 3 lost.log)"
cmp one.jsonl lost.jsonl || fail "the rows differ after a node was killed"
echo "Ray, a node killed: the same bytes, $((SECONDS - start)) s"
