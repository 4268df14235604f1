# Sourced by the benches: a client and a gateway daemon in two namespaces joined by one unshaped veth pair, gone at exit.
# Gives $client, $gateway (namespaces), $client_pid, $gateway_pid, $work (scratch folder), in_client, in_gateway, median,
# cpu PID (seconds used), tcp ADDRESS [IPERF3 OPTIONS] (Mbit/s of one TCP flow from the client, for $seconds).
set -euo pipefail
bin=${PLEACH_BIN:-$(dirname "${BASH_SOURCE[0]}")/../target/release/pleach}
seconds=${SECONDS_EACH:-4}
work=$(mktemp -d)
client=plv-c-$$
gateway=plv-g-$$
pids=()

cleanup() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    ip netns del "$client" 2>/dev/null || true
    ip netns del "$gateway" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

in_client() { ip netns exec "$client" "$@"; }
in_gateway() { ip netns exec "$gateway" "$@"; }
median() { sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

ip netns add "$client"
ip netns add "$gateway"
ip link add c0 netns "$client" type veth peer name g0 netns "$gateway"
for pair in "$client c0 10.100.0.2/24" "$gateway g0 10.100.0.1/24"; do
    read -r ns device address <<<"$pair"
    ip -n "$ns" link set lo up
    ip -n "$ns" address add "$address" dev "$device"
    ip -n "$ns" link set "$device" up
done

"$bin" genkey >"$work/c.key"
"$bin" genkey >"$work/g.key"
chmod 600 "$work"/*.key
cat >"$work/client.toml" <<TOML
mode = "client"
[tunnel]
name = "plvc"
address = ["10.77.0.2/24"]
private_key_file = "$work/c.key"
control = "$work/c.sock"
[gateway]
public_key = "$("$bin" pubkey <"$work/g.key")"
endpoints = ["10.100.0.1:7700"]
allowed_ips = ["10.77.0.0/24"]
[[link]]
name = "veth"
device = "c0"
${limit:-}
TOML
cat >"$work/gateway.toml" <<TOML
mode = "gateway"
[tunnel]
name = "plvg"
address = ["10.77.0.1/24"]
private_key_file = "$work/g.key"
listen = "0.0.0.0:7700"
control = "$work/g.sock"
[[client]]
name = "bench"
public_key = "$("$bin" pubkey <"$work/c.key")"
allowed_ips = ["10.77.0.2/32"]
TOML
ip netns exec "$gateway" "$bin" up "$work/gateway.toml" 2>"$work/g.log" &
gateway_pid=$!
ip netns exec "$client" "$bin" up "$work/client.toml" 2>"$work/c.log" &
client_pid=$!
pids=("$gateway_pid" "$client_pid")
for _ in $(seq 50); do
    in_client ping -c 1 -W 1 -q 10.77.0.1 >/dev/null 2>&1 && break
done

tcp() {
    ip netns exec "$gateway" iperf3 -s -1 >/dev/null &
    pids+=("$!")
    for _ in $(seq 50); do in_gateway ss -Hltn 'sport = :5201' | grep -q . && break; done
    in_client iperf3 -c "$1" -t "$seconds" -f m ${2:-} | awk '/receiver/ { print $7 }'
    wait "${pids[-1]}"
    unset 'pids[-1]'
}
cpu() { awk -v hz="$(getconf CLK_TCK)" '{ print ($14 + $15) / hz }' "/proc/$1/stat"; }
