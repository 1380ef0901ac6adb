#!/bin/sh
# Kafka's jars, each of them as its checksum says.
set -eu
mvn --quiet --batch-mode org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
    -DoutputDirectory=build/lib -DincludeScope=runtime
sums=$PWD/SHA256SUMS
cd build/lib
[ "$(ls | wc -l)" = "$(wc -l <"$sums")" ]
sha256sum --check --strict --quiet "$sums"
