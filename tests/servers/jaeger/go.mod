// Module v1.76.0 is Jaeger 2.13: its v2 tags do not resolve, as the module path has no /v2.
module otel-mlperf.invalid/servers/jaeger

go 1.26

require github.com/jaegertracing/jaeger v1.76.0

// Repeated from Jaeger's own go.mod, which only counts in a main module.
replace github.com/Shopify/sarama => github.com/Shopify/sarama v1.33.0
