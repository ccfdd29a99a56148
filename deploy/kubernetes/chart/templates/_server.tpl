{{/* Pod of a server, without its restart policy. */}}
{{- define "ballast.serverPod" -}}
{{- $jobset := include "ballast.jobset" . -}}
metadata:
  labels:
    {{- include "ballast.serverLabels" . | nindent 4 }}
spec:
  {{- include "ballast.podSecurity" . | nindent 2 }}
  {{- if $jobset }}
  restartPolicy: Never
  {{- end }}
  terminationGracePeriodSeconds: 120
  {{- include "ballast.serverPlacement" . | nindent 2 }}
  containers:
    - name: server
      image: {{ .Values.image.server }}
      imagePullPolicy: IfNotPresent
      command: ["/usr/bin/ballast_server"]
      env:
        {{- if $jobset }}
        {{- include "ballast.jobsetNames" (dict "server" true) | nindent 8 }}
        {{- else }}
        {{- include "ballast.field" (list "POD_NAME" "metadata.name") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_RANK" "$(POD_NAME)") | nindent 8 }}
        {{- end }}
        {{- include "ballast.variable" (list "BALLAST_LISTEN" "0.0.0.0:7700") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_CONTROL_LISTEN" "0.0.0.0:7701") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_HTTP_PORT" "7702") | nindent 8 }}
        {{- if $jobset }}
        {{- include "ballast.variable" (list "BALLAST_ADVERTISE" "$(JOBSET_NAME)-server-0-$(BALLAST_RANK).$(JOBSET_NAME).$(POD_NAMESPACE).svc:7700") | nindent 8 }}
        {{- else }}
        {{- include "ballast.variable" (list "BALLAST_ADVERTISE" (printf "$(POD_NAME).%s-server:7700" .Release.Name)) | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_COORDINATOR" (printf "%s-server-0.%s-server:7701" .Release.Name .Release.Name)) | nindent 8 }}
        {{- end }}
        {{- include "ballast.variable" (list "BALLAST_RUN_BY" "orchestrator") | nindent 8 }}
        {{- if $jobset }}
        {{- include "ballast.variable" (list "BALLAST_WITH_STANDBY" "true") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_STATE_DIR" "/shared/$(JOBSET_NAME)/$(JOBSET_UID)/state-$(JOBSET_RESTART)/$(BALLAST_RANK)") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_CHECKPOINT_DIR" "/shared/$(JOBSET_NAME)/$(JOBSET_UID)/checkpoints") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_RESUME" "auto") | nindent 8 }}
        {{- else }}
        {{- include "ballast.variable" (list "BALLAST_STATE_DIR" "/state/shard") | nindent 8 }}
        {{- end }}
        {{- include "ballast.tls" (dict "identity" "server" "tokens" "tokens") | nindent 8 }}
        {{- include "ballast.variable" (list "BALLAST_MEMORY_LIMIT_GIB" (include "ballast.memoryLimitGib" .)) | nindent 8 }}
      envFrom:
        - configMapRef:
            name: {{ include "ballast.sizeName" . }}
      ports:
        - name: grpc
          containerPort: 7700
        - name: control
          containerPort: 7701
        - name: http
          containerPort: 7702
      startupProbe:
        {{- include "ballast.probe" (dict "path" "/healthz" "period" 2 "failures" 60) | nindent 8 }}
      readinessProbe:
        {{- include "ballast.probe" (dict "path" "/readyz" "period" 5) | nindent 8 }}
      livenessProbe:
        {{- include "ballast.probe" (dict "path" "/healthz" "period" 20 "failures" 6) | nindent 8 }}
      resources:
        requests:
          cpu: "1"
          memory: {{ .Values.memory.server.request }}
        limits:
          memory: {{ .Values.memory.server.limit }}
      {{- include "ballast.containerSecurity" . | nindent 6 }}
      volumeMounts:
        - name: keys
          mountPath: /etc/ballast/keys
          readOnly: true
        {{- if $jobset }}
        - name: shared
          mountPath: /shared
        {{- else }}
        - name: state
          mountPath: /state
        {{- end }}
  volumes:
    {{- include "ballast.keys" (dict "root" . "role" "server" "identity" "server" "tokens" (list "tokens" "reader.token")) | nindent 4 }}
{{- end }}

{{/* Affinity and spread of the server pods. */}}
{{- define "ballast.serverPlacement" -}}
{{- if or (include "ballast.jobset" .) .Values.components.spot .Values.components.spread }}
affinity:
  {{- if .Values.components.spot }}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - key: karpenter.sh/capacity-type
              operator: NotIn
              values: ["spot"]
  {{- end }}
  {{- if .Values.components.spread }}
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "ballast.serverLabels" . | nindent 12 }}
  {{- else if include "ballast.jobset" . }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "ballast.serverLabels" . | nindent 14 }}
  {{- end }}
{{- end }}
{{- if .Values.components.spread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "ballast.serverLabels" . | nindent 8 }}
{{- end }}
{{- end }}
