#!/usr/bin/env bash
# Makes a local stand-in for the base image of the Dockerfile, for a machine that reaches Debian's packages and no container registry.
# Needs root, buildah and debootstrap; no daemon. Takes about a minute and a half, once.
#
#   usage: stand-in-image.sh NAME             NAME as in the Dockerfile's FROM, such as python:3.11-slim-bookworm
#
# The stand-in is Debian 12 with Debian's Python 3.11. It carries this machine's apt and pip settings, so it is for tests and never published.
set -euo pipefail

name=${1:?usage: stand-in-image.sh NAME}
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}

if buildah inspect --type image "$name" >/dev/null 2>&1; then
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

# The package mirror that this machine itself uses, in either of the formats of apt's sources; Debian's own without one.
mirror=$(sed -nE 's/^URIs: *([^ ]+).*/\1/p; s/^deb (\[[^]]*\] )?([^ ]+) .*/\2/p' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | head -n 1 || true)

packages=python3,python3-venv,python3-dev,python3-pip,python-is-python3,ca-certificates
echo "making a stand-in for $name from Debian's packages (a minute or two)" >&2
if ! debootstrap --variant=minbase --include="$packages" bookworm "$root" ${mirror:+"$mirror"} >"$work/log"; then
    tail -n 5 "$work/log" >&2
    exit 1
fi
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED # pip may install into the system, as in the image this stands in for

for file in /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d /etc/pip.conf /etc/resolv.conf /etc/hosts \
    /etc/ssl/certs /usr/local/share/ca-certificates; do
    if [ -e "$file" ]; then
        mkdir -p "$root$(dirname "$file")"
        cp -r "$file" "$root$(dirname "$file")/"
    fi
done

container=$(buildah from scratch)
buildah add --quiet "$container" "$root" / >/dev/null
buildah config --env PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin --cmd python3 "$container"
buildah commit --quiet --rm "$container" "$name" >/dev/null
