#!/bin/sh
# Runs BIRD for as long as there is a network: a container in the network of another one loses it when that one is restarted,
# and must then be restarted, too.
set -e
/usr/sbin/bird -f -c /etc/bird/bird.conf &
bird=$!
trap 'kill "$bird"' TERM INT
while kill -0 "$bird" 2>/dev/null; do
    if ! ls -d /sys/class/net/eth* >/dev/null 2>&1; then
        echo "the network of this container is gone" >&2
        kill "$bird"
        exit 1
    fi
    sleep 1
done
wait "$bird"
