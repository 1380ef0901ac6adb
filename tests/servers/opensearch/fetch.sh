#!/bin/sh
# OpenSearch without plugins, as its checksum says.
set -eu
mvn --quiet --batch-mode org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
    -Dartifact=org.opensearch.distribution.integ-test-zip:opensearch:2.19.6:zip -DoutputDirectory=.
sha256sum --check --strict --quiet SHA256SUMS
mkdir build
python3 -m zipfile -e opensearch-2.19.6.zip build
mv build/opensearch-2.19.6 build/opensearch
