{{/* Labels of every object, and selector of all pods of the job. */}}
{{- define "ballast.labels" -}}
app.kubernetes.io/name: ballast
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ballast.serverLabels" -}}
{{ include "ballast.labels" . }}
app.kubernetes.io/component: server
{{- end }}

{{- define "ballast.workerLabels" -}}
{{ include "ballast.labels" . }}
app.kubernetes.io/component: worker
{{- end }}

{{/* Not empty for the JobSet. */}}
{{- define "ballast.jobset" -}}
{{- if eq .Values.durability "standby" }}true{{ end }}
{{- end }}

{{- define "ballast.serverPods" -}}
{{- if include "ballast.jobset" . }}{{ mul 2 .Values.servers }}{{ else }}{{ .Values.servers }}{{ end }}
{{- end }}

{{/* The job file, also as a suffix of its ConfigMap's name: a changed job gets a new one. */}}
{{- define "ballast.job" -}}
{{- .Values.job | default (.Files.Get "files/job.textproto") }}
{{- end }}

{{- define "ballast.jobName" -}}
{{ .Release.Name }}-job-{{ include "ballast.job" . | sha256sum | trunc 10 }}
{{- end }}

{{- define "ballast.sizeName" -}}
{{ .Release.Name }}-size-{{ printf "%d/%d" (int .Values.servers) (int .Values.workers) | sha256sum | trunc 10 }}
{{- end }}

{{/* Server pods that a StatefulSet has at most, each with its own name in the certificate. */}}
{{- define "ballast.certificateHosts" -}}
{{ mul 2 .Values.servers }}
{{- end }}
