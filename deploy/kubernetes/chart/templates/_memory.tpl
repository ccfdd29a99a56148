{{/* Memory in MiB, from text such as 512Mi. */}}
{{- define "ballast.mebibytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $unit := regexFind "[A-Z]i$" . -}}
{{- if eq $unit "Ti" }}{{ mul $number 1048576 }}{{ else if eq $unit "Gi" }}{{ mul $number 1024 }}{{ else }}{{ $number }}{{ end }}
{{- end }}

{{/* What server.yaml sets as --memory_limit_gib: three quarters of the limit. */}}
{{- define "ballast.memoryLimitGib" -}}
{{ divf (mulf (include "ballast.mebibytes" .Values.memory.server.limit | int64) 0.75) 1024.0 }}
{{- end }}

{{/* Fails if a request is less than the job needs. A server holds its share of the weights and of two optimizer slots
(12 bytes per parameter), and up to 256 MiB of requests and responses. A worker holds weights, gradients and both as they
are sent (16 bytes per parameter), and its data, which is not counted. */}}
{{- define "ballast.checkMemory" -}}
{{- $parameters := int64 .Values.parameters -}}
{{- $server := add 320 (div (mul 12 $parameters) (mul 1048576 (int64 .Values.servers))) 1 -}}
{{- $worker := add 128 (div (mul 16 $parameters) 1048576) 1 -}}
{{- range $role, $want := dict "server" $server "worker" $worker }}
{{- $memory := index $.Values.memory $role -}}
{{- $got := include "ballast.mebibytes" $memory.request | int64 -}}
{{- if lt $got (int64 $want) }}
{{- fail (printf "memory.%s.request: got %s, want at least %dMi for a model of %d parameters on %d servers" $role $memory.request $want $parameters (int $.Values.servers)) }}
{{- end }}
{{- if lt (include "ballast.mebibytes" $memory.limit | int64) $got }}
{{- fail (printf "memory.%s.limit: got %s, want at least the request, %s" $role $memory.limit $memory.request) }}
{{- end }}
{{- end }}
{{- end }}
