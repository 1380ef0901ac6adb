// Module v0.315.0 is Prometheus 3.15.
module otel-mlperf.invalid/servers/prometheus

go 1.26.0

require github.com/prometheus/prometheus v0.315.0

// Repeated from Prometheus' own go.mod, which only counts in a main module.
replace cloud.google.com/go => cloud.google.com/go v0.123.0

exclude (
	github.com/grpc-ecosystem/grpc-gateway v1.14.7
	github.com/linode/linodego v1.0.0
	google.golang.org/api v0.30.0
)
