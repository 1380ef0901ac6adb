#!/bin/sh
# Pins the images of compose.yaml by digest: writes image:version@sha256:… for each image:version.
# The digests are those that the registry has now; run it again after a change of version.
set -eu
cd "$(dirname "$0")"
for image in $(sed -n 's/^ *image: *\([^@ ]*\).*/\1/p' compose.yaml); do
    digest=$(docker buildx imagetools inspect "$image" --format '{{.Manifest.Digest}}')
    case $digest in
        sha256:????????????????????????????????????????????????????????????????) ;;
        *) echo "no digest of $image: $digest" >&2; exit 1 ;;
    esac
    # Written through a temporary file, so that an interrupt leaves the old one whole.
    sed "s|image: *$image\(@sha256:[0-9a-f]*\)\{0,1\}\$|image: $image@$digest|" compose.yaml > compose.yaml.new
    mv compose.yaml.new compose.yaml
    echo "$image@$digest"
done
