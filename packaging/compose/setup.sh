#!/usr/bin/env bash
# Writes keys and configurations of the three gateways of compose.yaml into ./state, once. PLEACH is a command that runs pleach;
# without it, the image is built first by COMPOSE ("docker compose", or podman-compose), and used by ENGINE (docker, or podman).
# OUTSIDE is the one at which clients reach this host; default: the first one that it has.
# Run it as the user as whom the containers run: root, or the user of a rootless engine. The files can be read by that user only.
set -Eeuo pipefail
cd "$(dirname "$0")"
engine=${ENGINE:-docker}
compose=${COMPOSE:-$engine compose}
pleach=${PLEACH:-$engine run --rm -i --network none pleach}
templates=../bird
# Address of this host that tokens of `pleach gateway invite` name.
address=${OUTSIDE:-$(hostname -I | cut -d ' ' -f 1)}
case $address in *:*) address="[$address]" ;; esac
umask 077

if [ -e state ]; then
    echo "state is there already: remove it to begin anew" >&2
    exit 1
fi
if [ -z "${PLEACH:-}" ]; then
    $compose build gw1
fi
# A half-written state is of no use.
trap 'rm -rf state; exit 1' ERR INT TERM
mkdir -p state/router
head -c 24 /dev/urandom | base64 >state/database.password

# Prints the template $1 for the gateway number $2.
bird() {
    sed -e "s|192\.0\.2\.1|172.31.0.1$2|g; s|192\.0\.2\.2|172.31.0.2|g" \
        -e "s|2001:db8::1|fd31::1$2|g; s|2001:db8::2|fd31::2|g" \
        -e "s|10\.77\.1\.0/24|10.77.$2.0/24|g; s|fd77:0:0:1::/64|fd77:0:0:$2::/64|g" \
        -e "s|65001|6500$2|g; s|gw1|gw$2|g" "$templates/$1"
}

for number in 1 2 3; do
    mkdir "state/gw$number"
    bird gateway.conf "$number" >"state/gw$number/bird.conf"
    $pleach genkey >"state/gw$number/gateway.key"
    public=$($pleach pubkey <"state/gw$number/gateway.key")
    echo "public key of gw$number: $public"
    cp state/database.password "state/gw$number/database.password"
    cat >"state/gw$number/gateway.toml" <<TOML
mode = "gateway"
[tunnel]
name = "pleach0"
address = ["10.77.0.$number/32", "fd77::$number/128"]
private_key_file = "gateway.key"
listen = "[::]:7700"
control = "/run/pleach/gateway.sock"
nat = false
split_tcp = "off"
[scheduler]
policy = "adaptive"
[clients]
source = "postgres"
store = "host=/run/postgresql dbname=pleach user=pleach"
password_file = "database.password"
networks = ["10.77.0.0/16", "fd77::/48"]
[invitations]
endpoints = ["$address:770$number"]
[fleet]
name = "gw$number"
home = ["10.77.$number.0/24", "fd77:0:0:$number::/64"]
TOML
done

# The router has one pair of sessions for each gateway.
bird router.conf 1 | sed '/^protocol bgp/,$d' >state/router/bird.conf
for number in 1 2 3; do
    bird router.conf "$number" | sed -n '/^protocol bgp/,$p' >>state/router/bird.conf
done
chmod 644 state/router/bird.conf state/gw?/bird.conf
chmod 755 state state/router state/gw?
if [ "$(id -u)" != 0 ]; then
    echo "If the engine runs as root, so do the containers, without the right to read files of others: sudo chown -R root state"
fi
