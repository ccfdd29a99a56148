{{/* What the pod templates of all four workloads share. */}}
{{- define "ballast.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "ballast.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
{{- end }}

{{- define "ballast.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: HTTPS
periodSeconds: {{ .period }}
timeoutSeconds: 5
{{- with .failures }}
failureThreshold: {{ . }}
{{- end }}
{{- end }}

{{/* Variable whose value is a field of the pod. */}}
{{- define "ballast.field" -}}
- name: {{ index . 0 }}
  valueFrom:
    fieldRef:
      fieldPath: {{ index . 1 }}
{{- end }}

{{- define "ballast.variable" -}}
- name: {{ index . 0 }}
  value: {{ index . 1 | quote }}
{{- end }}

{{/* Rank and addresses in a JobSet follow from labels that the controllers set. */}}
{{- define "ballast.jobsetNames" -}}
{{ include "ballast.field" (list "JOBSET_NAME" "metadata.labels['jobset.sigs.k8s.io/jobset-name']") }}
{{ include "ballast.field" (list "JOBSET_UID" "metadata.labels['jobset.sigs.k8s.io/jobset-uid']") }}
{{- if .server }}
{{ include "ballast.field" (list "JOBSET_RESTART" "metadata.labels['jobset.sigs.k8s.io/restart-attempt']") }}
{{- end }}
{{ include "ballast.field" (list "COORDINATOR_HOST" "metadata.labels['jobset.sigs.k8s.io/coordinator']") }}
{{ include "ballast.field" (list "POD_NAMESPACE" "metadata.namespace") }}
{{ include "ballast.field" (list "BALLAST_RANK" "metadata.labels['batch.kubernetes.io/job-completion-index']") }}
{{ include "ballast.variable" (list "BALLAST_COORDINATOR" "$(COORDINATOR_HOST).$(POD_NAMESPACE).svc:7701") }}
{{- end }}

{{- define "ballast.tls" -}}
{{ include "ballast.variable" (list "BALLAST_TLS_CERT" (printf "/etc/ballast/keys/%s.pem" .identity)) }}
{{ include "ballast.variable" (list "BALLAST_TLS_KEY" (printf "/etc/ballast/keys/%s.key" .identity)) }}
{{ include "ballast.variable" (list "BALLAST_TLS_CA" "/etc/ballast/keys/ca.pem") }}
{{ include "ballast.variable" (list "BALLAST_TOKEN_FILE" (printf "/etc/ballast/keys/%s" .tokens)) }}
{{- end }}

{{/* Volume with certificates and tokens of .role. */}}
{{- define "ballast.keys" -}}
- name: keys
{{- if .root.Values.components.certManager }}
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ .root.Release.Name }}-{{ .role }}-tls
          items:
            - key: ca.crt
              path: ca.pem
            - key: tls.crt
              path: {{ .identity }}.pem
            - key: tls.key
              path: {{ .identity }}.key
      - secret:
          name: {{ .root.Release.Name }}-{{ .role }}
          items:
{{- range .tokens }}
            - key: {{ . }}
              path: {{ . }}
{{- end }}
{{- else }}
  secret:
    secretName: {{ .root.Release.Name }}-{{ .role }}
    defaultMode: 0440
{{- end }}
{{- end }}
