#!/bin/sh
# Makes Grafana's admin password once, readable by you alone; an existing one stays.
set -eu
umask 077
folder="$(cd "$(dirname "$0")" && pwd)/secrets"
file="$folder/grafana_admin_password"
if [ -s "$file" ]; then
    echo "kept $file"
    exit 0
fi
mkdir -p "$folder"
# 24 random bytes, written as 32 characters.
head -c 24 /dev/urandom | base64 | tr -d '\n' >"$file.new"
mv "$file.new" "$file"
echo "made $file; sign in to Grafana as admin with its content"
