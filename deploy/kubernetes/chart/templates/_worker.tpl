{{/* Pod of a worker. */}}
{{- define "ballast.workerPod" -}}
{{- $jobset := include "ballast.jobset" . -}}
metadata:
  labels:
    {{- include "ballast.workerLabels" . | nindent 4 }}
spec:
  {{- include "ballast.podSecurity" . | nindent 2 }}
  restartPolicy: Never
  terminationGracePeriodSeconds: 30
  {{- if .Values.components.spot }}
  tolerations:
    - key: karpenter.sh/capacity-type
      operator: Equal
      value: spot
      effect: NoSchedule
  {{- end }}
  containers:
    - name: worker
      image: {{ .Values.image.worker }}
      imagePullPolicy: IfNotPresent
      command: ["/usr/bin/ballast_worker"]
      env:
        {{- if $jobset }}
        {{- include "ballast.jobsetNames" (dict "server" false) | nindent 8 }}
        {{- else }}
        {{- include "ballast.field" (list "BALLAST_RANK" "metadata.annotations['batch.kubernetes.io/job-completion-index']") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_COORDINATOR" (printf "%s-server-0.%s-server:7701" .Release.Name .Release.Name)) | nindent 8 }}
        {{- end }}
        {{- include "ballast.variable" (list "BALLAST_HTTP_PORT" "0.0.0.0:7702") | nindent 8 }}
        {{- include "ballast.tls" (dict "identity" "client" "tokens" "worker.token") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_HTTP_TOKEN_FILE" "/etc/ballast/keys/reader.token") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_JOB" "/etc/ballast/job/job.textproto") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_DURABILITY" .Values.durability) | nindent 8 }}
        - name: BALLAST_THREADS
          valueFrom:
            resourceFieldRef:
              resource: requests.cpu
        {{- include "ballast.variable" (list "BALLAST_DEVICE" (ternary "cuda" "cpu" (gt (int .Values.gpu) 0))) | nindent 8 }}
        {{- if gt (int .Values.gpu) 1 }}
        {{- include "ballast.variable" (list "BALLAST_GPUS" (toString .Values.gpu)) | nindent 8 }}
        {{- end }}
        {{- if $jobset }}
        {{- include "ballast.variable" (list "BALLAST_RUN_DIR" "/shared/$(JOBSET_NAME)/$(JOBSET_UID)/run") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_CONTINUE_RUN" "true") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_RUN_BY" "orchestrator") | nindent 8 }}
        {{- else }}
        {{- include "ballast.variable" (list "BALLAST_RUN_DIR" "/run-dir") | nindent 8 }}
        {{- end }}
        {{- include "ballast.variable" (list "BALLAST_GATHER_TIMEOUT" "600") | nindent 8 }}
      ports:
        - name: http
          containerPort: 7702
      startupProbe:
        {{- include "ballast.probe" (dict "path" "/healthz" "period" 5 "failures" 60) | nindent 8 }}
      livenessProbe:
        {{- include "ballast.probe" (dict "path" "/healthz" "period" 20 "failures" 6) | nindent 8 }}
      resources:
        requests:
          cpu: "1"
          memory: {{ .Values.memory.worker.request }}
        limits:
          memory: {{ .Values.memory.worker.limit }}
          {{- if gt (int .Values.gpu) 0 }}
          nvidia.com/gpu: {{ .Values.gpu | quote }}
          {{- end }}
      {{- include "ballast.containerSecurity" . | nindent 6 }}
      volumeMounts:
        - name: job
          mountPath: /etc/ballast/job
          readOnly: true
        - name: keys
          mountPath: /etc/ballast/keys
          readOnly: true
        - name: {{ if $jobset }}shared{{ else }}run-dir{{ end }}
          mountPath: /{{ if $jobset }}shared{{ else }}run-dir{{ end }}
  volumes:
    - name: job
      configMap:
        name: {{ include "ballast.jobName" . }}
    {{- include "ballast.keys" (dict "root" . "role" "worker" "identity" "client" "tokens" (list "worker.token" "reader.token")) | nindent 4 }}
    {{- if not $jobset }}
    - name: run-dir
      emptyDir: {}
    {{- end }}
{{- end }}

{{/* The pod failure policy of both Jobs; .role names the container. */}}
{{- define "ballast.podFailurePolicy" -}}
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
    - action: FailJob
      onExitCodes:
        containerName: {{ .role }}
        operator: In
        values: [1, 2]
    {{- if eq .role "server" }}
    - action: FailIndex
      onExitCodes:
        containerName: server
        operator: In
        values: [69]
    {{- end }}
{{- end }}

{{- define "ballast.claim" -}}
accessModes: [{{ .mode }}]
{{- with .root.Values.volume.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .root.Values.volume.size }}
{{- end }}
