#!/usr/bin/env bash
# The proxy, measured: two links of 20 and 10 Mbit/s (tc tbf), an unmodified HTTP server behind them, and
#
#   sum      16 parallel downloads by curl for DURATION seconds, through each way in; payload against 30 Mbit/s
#   cgroup   the same with programs' own sockets bound to links, no proxy in the way
#   one      one download of 40 MB after the other, by plain HTTP: in parts over both links, whole over one, without a proxy
#   many     2 000 connections at a time, opened 200 a second; errors, memory of the proxy
#   speed    bytes through the proxy over the loopback device, relayed by splice
#
# Everything is in namespaces of its own and gone at exit. Needs root, curl, python3.
set -euo pipefail
bin=${PLEACH_BIN:-$(dirname "$0")/../target/release/pleach}
bench_py=$(realpath "$(dirname "$0")")/proxy.py
duration=${DURATION:-20}
work=$(mktemp -d)
client=plp-c-$$
router=plp-r-$$
server=plp-s-$$
pids=()

cleanup() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    for ns in "$client" "$router" "$server"; do ip netns del "$ns" 2>/dev/null || true; done
    rm -rf "$work"
}
trap cleanup EXIT

for ns in "$client" "$router" "$server"; do
    ip netns add "$ns"
    ip -n "$ns" link set lo up
done
# wire DEVICE NUMBER RATE: a link of the client, shaped in both directions.
wire() {
    ip link add "$1" netns "$client" type veth peer name "r$2" netns "$router"
    ip -n "$client" address add "10.$2.0.2/24" dev "$1"
    ip -n "$router" address add "10.$2.0.1/24" dev "r$2"
    ip -n "$client" link set "$1" up
    ip -n "$router" link set "r$2" up
    ip -n "$client" route add default via "10.$2.0.1" dev "$1" metric "10$2"
    ip netns exec "$client" tc qdisc add dev "$1" root tbf rate "$3" burst 16kb latency 50ms
    ip netns exec "$router" tc qdisc add dev "r$2" root tbf rate "$3" burst 16kb latency 50ms
}
wire wifi 1 20mbit
wire lte 2 10mbit
ip link add eth0 netns "$server" type veth peer name rs netns "$router"
ip -n "$server" address add 10.9.0.2/24 dev eth0
ip -n "$router" address add 10.9.0.1/24 dev rs
ip -n "$server" link set eth0 up
ip -n "$router" link set rs up
ip -n "$server" route add default via 10.9.0.1
ip netns exec "$router" sysctl -q net.ipv4.ip_forward=1
ip netns exec "$client" sysctl -q net.ipv4.conf.all.rp_filter=0

mkdir "$work/files"
head -c 1000000 /dev/urandom >"$work/files/1M"
head -c 40000000 /dev/urandom >"$work/files/40M"
(cd "$work/files" && exec ip netns exec "$server" python3 "$bench_py" serve 8000 2>"$work/server.log") &
pids+=($!)
# Else the first sum is short by as long as Python takes to start.
for _ in $(seq 100); do
    ip netns exec "$client" curl -s -o /dev/null http://10.9.0.2:8000/ && break
    sleep 0.1
done

# start NAME [TOML]: the proxy, its pid in $proxy.
start() {
    printf 'mode = "proxy"\n[proxy]\nlisten = "127.0.0.1:1080"\ncontrol = "%s/proxy.sock"\n%b\n' "$work" "${1:-}" >"$work/proxy.toml"
    # Not by `ip netns exec`, which hides /sys/fs/cgroup.
    nsenter --net="/run/netns/$client" "$bin" proxy "$work/proxy.toml" 2>>"$work/proxy.log" &
    proxy=$!
    pids+=("$proxy")
    for _ in $(seq 50); do
        "$bin" status --control "$work/proxy.sock" 2>/dev/null | grep -q ' up ' && break
        sleep 0.1
    done
}
stop() {
    kill "$proxy"
    wait "$proxy" || true
}
links='[[link]]\nname = "wifi"\ndevice = "wifi"\n[[link]]\nname = "lte"\ndevice = "lte"'

# cgroup_root: where cgroup v2 is mounted. Other namespaces on the machine are not touched: the hook sees to its own.
cgroup_root() { awk '$3 == "cgroup2" { print $2; found = 1; exit } END { exit !found }' /proc/mounts; }

# sum LABEL CURL-OPTIONS: payload rate of 16 parallel loops of downloads, all cut off at the same time, Mbit/s.
sum() {
    local label=$1 begin
    shift
    rm -f "$work"/count.*
    begin=$(date +%s.%N)
    for n in $(seq 16); do
        (
            while left=$(awk "BEGIN { print $begin + $duration - $(date +%s.%N) }") && [ "${left:0:1}" != - ]; do
                ip netns exec "$client" curl -s -o /dev/null -w '%{size_download}\n' --max-time "$left" "$@" \
                    http://10.9.0.2:8000/1M || true
            done >"$work/count.$n"
        ) &
        workers[n]=$!
    done
    wait "${workers[@]}"
    cat "$work"/count.* | awk -v label="$label" -v t="$duration" \
        '{ bytes += $1 } END { rate = bytes * 8 / 1e6 / t; printf "sum  %-13s %5.1f Mbit/s of 30: %.2f\n", label, rate, rate / 30 }'
}
# one LABEL CURL-OPTIONS: payload rates of downloads of 40 MB, Mbit/s, median and all.
one() {
    local label=$1
    shift
    for _ in $(seq "${RUNS:-3}"); do
        ip netns exec "$client" curl -s -o "$work/got" -w '%{speed_download}\n' --max-time 60 "$@" http://10.9.0.2:8000/40M
        cmp -s "$work/got" "$work/files/40M" || echo "what came is something else" >&2
    done | sort -n | awk -v label="$label" \
        '{ rates[NR] = $1 * 8 / 1e6; all = all sprintf(" %.1f", rates[NR]) }
        END { printf "one  %-13s %5.1f Mbit/s of 30:%s\n", label, rates[int((NR + 1) / 2)], all }'
}
workers=()
for part in ${PARTS:-sum one cgroup many speed}; do
    case $part in
    sum)
        start "$links"
        sum socks5 --socks5 127.0.0.1:1080
        sum socks4a --socks4a 127.0.0.1:1080
        sum http-connect -p -x http://127.0.0.1:1080
        sum http -x http://127.0.0.1:1080
        stop
        start "transparent = true\n$links"
        sum transparent
        stop
        sum "no proxy"
        ;;
    one)
        start "$links"
        one "in parts" -x http://127.0.0.1:1080
        stop
        start "ranges = false\n$links"
        one whole -x http://127.0.0.1:1080
        stop
        one "no proxy"
        ;;
    cgroup)
        if cgroup=$(cgroup_root); then
            start "transparent = \"cgroup\"\ncgroup = \"$cgroup\"\n$links"
            sum cgroup
            stop
        else
            echo "sum  cgroup        SKIPPED: no cgroup v2"
        fi
        ;;
    many)
        start "$links"
        ip netns exec "$client" python3 "$bench_py" many 127.0.0.1:1080 10.9.0.2:8001 "$proxy"
        stop
        ;;
    speed)
        start '[[link]]\nname = "lo"\ndevice = "lo"'
        ip netns exec "$client" python3 "$bench_py" speed 127.0.0.1:1080
        stop
        ;;
    esac
done
