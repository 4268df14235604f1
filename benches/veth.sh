#!/usr/bin/env bash
# Speed of the data path: one TCP flow and a ping through the tunnel over one unshaped veth pair, and over the bare
# pair beside it, in one run. Prints medians of RUNS (default 5) and CPU seconds per gigabyte.
#
# Both daemons and both ends of the flow share this machine. To see where the time goes:
#   perf record -g -p PID_OF_A_DAEMON -- sleep 3; perf report
runs=${RUNS:-5}
# shellcheck source=benches/lib.sh
. "$(dirname "$0")/lib.sh"

# Beside them socat, which does nothing but copy packets between a TUN device and a UDP socket at both ends: what waking
# two processes each way takes on this machine, and so what no tunnel outside the kernel can be much quicker than.
relay() {
    ip netns exec "$1" socat "TUN:$2/24,tun-name=relay,iff-no-pi,iff-up" \
        "UDP-DATAGRAM:$4:7701,bind=$3:7701" 2>>"$work/relay.log" &
    pids+=("$!")
}
if command -v socat >/dev/null; then
    relay "$gateway" 10.78.0.1 10.100.0.1 10.100.0.2
    relay "$client" 10.78.0.2 10.100.0.2 10.100.0.1
    for _ in $(seq 50); do
        in_client ping -c 1 -W 1 -q 10.78.0.1 >/dev/null 2>&1 && relayed=yes && break
        sleep 0.1
    done
    [ -n "${relayed:-}" ] || sed 's/^/socat does not relay: /' "$work/relay.log" >&2
fi

# Median, which ping -q does not give.
ping_median_us() { in_client ping -c 300 -i 0.01 -n "$1" | sed -n 's/.*time=\([0-9.]*\) ms.*/\1/p' | awk '{ print $1 * 1000 }' | median; }

echo "ping, medians of 300 at 100/s; all take turns"
for _ in $(seq "$runs"); do
    echo "$(ping_median_us 10.100.0.1) $(ping_median_us 10.77.0.1) ${relayed:+$(ping_median_us 10.78.0.1)}"
done >"$work/pings"
column() { awk "{ print $1 }" "$work/pings" | median; }
awk -v b="$(column '$1')" -v t="$(column '$2')" -v a="$(column '$2 - $1')" -v n="$runs" \
    'BEGIN { printf "  bare veth %6.0f us   tunnel %6.0f us   added %6.0f us (medians of %d runs)\n", b, t, a, n }'
[ -z "${relayed:-}" ] || awk -v r="$(column '$3')" -v a="$(column '$3 - $1')" \
    'BEGIN { printf "                       socat %7.0f us   added %6.0f us\n", r, a }'
[ "${ONLY:-}" != ping ] || exit 0

for direction in up down; do
    flag=$([ "$direction" = down ] && echo -R || true)
    : >"$work/bare" && : >"$work/tunnel"
    before=$(awk "BEGIN { print $(cpu "$gateway_pid") + $(cpu "$client_pid") }")
    for _ in $(seq "$runs"); do
        tcp 10.100.0.1 "$flag" >>"$work/bare"
        tcp 10.77.0.1 "$flag" >>"$work/tunnel"
    done
    after=$(awk "BEGIN { print $(cpu "$gateway_pid") + $(cpu "$client_pid") }")
    awk -v d="$direction" -v n="$runs" -v bare="$(median <"$work/bare")" -v tunnel="$(median <"$work/tunnel")" \
        -v cpu="$(awk "BEGIN { print $after - $before }")" -v secs="$seconds" \
        '{ sum += $1 } END {
            gigabytes = sum * secs / 8 / 1000
            printf "one TCP flow %-4s  bare %6.0f Mbit/s   tunnel %6.0f Mbit/s (median of %d)   CPU %.2f s/GB both daemons\n", d, bare, tunnel, n, cpu / gigabytes
        }' "$work/tunnel"
done
