{{/*
Parts that all pods share. Each takes a dict with root, component and the keys that it names.
*/}}

{{/* No process runs as root, only named mounts are writable, and the token of Kubernetes is not mounted. */}}
{{- define "relaax.pod" -}}
serviceAccountName: {{ include "relaax.fullname" .root }}
automountServiceAccountToken: false
# Variables such as RELAAX_RLX_SERVER_PORT would be read as misspelt configuration keys.
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
terminationGracePeriodSeconds: {{ .grace }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "relaax.selector" . | nindent 8 }}
{{- with .role.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .role.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .role.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "relaax.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The checksums restart a pod when a file that it reads at its start has changed. */}}
{{- define "relaax.podMetadata" -}}
labels:
  {{- include "relaax.selector" . | nindent 2 }}
  {{- with .fleet }}
  relaax/fleet: {{ . }}
  {{- end }}
annotations:
  {{- if ne .component "environment" }}
  checksum/configuration: {{ .root.Values.configuration | sha256sum }}
  {{- if and (eq .root.Values.monitoring.kind "annotations") (ne .component "tensorboard") }}
  prometheus.io/scrape: "true"
  prometheus.io/port: "7002"
  prometheus.io/path: /metrics
  {{- end }}
  {{- end }}
  checksum/secrets: {{ list .root.Values.auth .root.Values.tls | toJson | sha256sum }}
{{- end -}}

{{/* Readiness uses the health of the status port. Liveness only requires a response, unless `alive` names another path.
`minutes`: time limit of a start. */}}
{{- define "relaax.probes" -}}
startupProbe:
  httpGet: {path: /metrics, port: status}
  periodSeconds: 2
  timeoutSeconds: 5
  # {{ .minutes | default 10 }} minutes, because a server first reads its checkpoint.
  failureThreshold: {{ mul 30 (.minutes | default 10) }}
readinessProbe:
  httpGet: {path: /healthz, port: status}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  httpGet: {path: {{ .alive | default "/metrics" }}, port: status}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{/* Tokens from the Secret as environment variables: `tokens` lists variable and key. */}}
{{- define "relaax.tokenVariables" -}}
{{- if not .root.Values.auth.allowAnonymous }}
{{- range .tokens }}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef:
      name: {{ include "relaax.tokens" $.root }}
      key: {{ index . 1 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Folders for files other than data: compiled kernels and a spool in the home directory, temporary files. */}}
{{- define "relaax.writableMounts" -}}
- name: home
  mountPath: /home/relaax
- name: tmp
  mountPath: /tmp
{{- end -}}

{{- define "relaax.writableVolumes" -}}
- name: home
  emptyDir: {}
- name: tmp
  emptyDir: {}
{{- end -}}

{{- define "relaax.commonMounts" -}}
{{- include "relaax.writableMounts" . }}
{{- if .root.Values.configuration }}
- name: experiment
  mountPath: /experiment
  readOnly: true
{{- end }}
{{- if and .root.Values.tls.enabled .certificates }}
- name: tls
  mountPath: /tls
  readOnly: true
{{- end }}
{{- end -}}

{{/* `certificates`: files of the Secret to mount. */}}
{{- define "relaax.commonVolumes" -}}
{{- include "relaax.writableVolumes" . }}
{{- if .root.Values.configuration }}
- name: experiment
  configMap:
    name: {{ include "relaax.fullname" .root }}-experiment
{{- end }}
{{- include "relaax.certificateVolume" . }}
{{- end -}}

{{- define "relaax.certificateVolume" -}}
{{- if and .root.Values.tls.enabled .certificates }}
- name: tls
  secret:
    secretName: {{ include "relaax.certificates" .root }}
    defaultMode: 0440
    items:
      {{- range .certificates }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- end -}}

{{/* Arguments of the servers. A status port that is not on loopback needs --allow-anonymous. The main port still requires
the tokens above. */}}
{{- define "relaax.statusArguments" -}}
- --status-bind={{ .Values.listen }}:7002
- --allow-anonymous
{{- end -}}

{{- define "relaax.ownCertificate" -}}
{{- if .root.Values.tls.enabled }}
- --set=relaax-{{ .component }}.tls-certificate=/tls/server.pem
- --set=relaax-{{ .component }}.tls-key=/tls/server-key.pem
{{- end }}
{{- end -}}

{{- define "relaax.askForCertificates" -}}
{{- if and .root.Values.tls.enabled .root.Values.tls.mutual }}
- --set=relaax-{{ .component }}.tls-client-ca=/tls/ca.pem
{{- end }}
{{- end -}}

{{/* Arguments of RLX servers and learners: addresses and certificates of parameter and replay servers. */}}
{{- define "relaax.services" -}}
- --parameter-server={{ include "relaax.parameterServers" .root }}
{{- $kinds := list "parameter-server" }}
{{- if .root.Values.replayServer.shards }}
- --replay-server={{ include "relaax.replayServers" .root }}
{{- $kinds = append $kinds "replay-server" }}
{{- end }}
{{- if .root.Values.tls.enabled }}
{{- range $kind := $kinds }}
- --set=relaax-{{ $.component }}.{{ $kind }}-ca=/tls/ca.pem
{{- if $.root.Values.tls.mutual }}
- --set=relaax-{{ $.component }}.{{ $kind }}-certificate=/tls/worker.pem
- --set=relaax-{{ $.component }}.{{ $kind }}-key=/tls/worker-key.pem
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "relaax.extraArguments" -}}
{{- range . }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Arguments for the location of checkpoints: `path` below the run. */}}
{{- define "relaax.checkpoints" -}}
{{- $s3 := .root.Values.storage.s3 }}
{{- if $s3.bucket }}
- --checkpoint-aws-s3
- {{ $s3.bucket | quote }}
- {{ printf "%s/%s/%s" $s3.key (include "relaax.run" .root) .path | quote }}
{{- with $s3.endpoint }}
- --aws-endpoint={{ . }}
{{- end }}
{{- else }}
- --checkpoint-dir=/data/{{ include "relaax.run" .root }}/{{ .path }}
{{- end }}
{{- end -}}

{{- define "relaax.s3Variables" -}}
{{- $s3 := .Values.storage.s3 }}
{{- if $s3.bucket }}
{{- with $s3.existingSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: access}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: secret}
{{- end }}
{{- with $s3.region }}
- name: AWS_DEFAULT_REGION
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Number of the pod in its StatefulSet. */}}
{{- define "relaax.ordinal" -}}
- name: ORDINAL
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
{{- end -}}

{{/* Container of TensorBoard, in its own pod or in the parameter server's. */}}
{{- define "relaax.tensorboard" -}}
{{- $s3 := .Values.storage.s3 -}}
- name: tensorboard
  image: {{ include "relaax.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    {{- if $s3.bucket }}
    - tensorboard
    - --logdir=s3://{{ $s3.bucket }}/{{ $s3.key }}/{{ include "relaax.run" . }}/metrics
    - --host={{ .Values.listen | trimAll "[]" }}
    - --port=6006
    # The fast reader does not support S3.
    - --load_fast=false
    {{- else }}
    - relaax-tensorboard
    - --config={{ include "relaax.config" . }}
    - --metrics-dir=/data/{{ include "relaax.run" . }}/metrics
    - --bind={{ .Values.listen }}:6006
    # TensorBoard has no token: the NetworkPolicy and `kubectl port-forward` restrict access.
    - --allow-anonymous
    {{- end }}
  {{- if and $s3.bucket (or $s3.existingSecret $s3.region $s3.endpoint) }}
  env:
    {{- with include "relaax.s3Variables" . | trim }}{{ nindent 4 . }}{{ end }}
    {{- with $s3.endpoint }}
    - name: S3_ENDPOINT
      value: {{ . | quote }}
    {{- end }}
  {{- end }}
  ports:
    - {name: http, containerPort: 6006}
  startupProbe:
    httpGet: {path: /, port: http}
    periodSeconds: 5
    failureThreshold: 60
  readinessProbe:
    httpGet: {path: /, port: http}
    timeoutSeconds: 5
  livenessProbe:
    tcpSocket: {port: http}
    periodSeconds: 30
  resources:
    {{- toYaml .Values.tensorboard.resources | nindent 4 }}
  securityContext:
    {{- include "relaax.containerSecurity" . | nindent 4 }}
  volumeMounts:
    {{- include "relaax.commonMounts" (dict "root" . "certificates" list) | nindent 4 }}
    {{- if not $s3.bucket }}
    - {name: data, mountPath: /data, readOnly: true}
    {{- end }}
{{- end -}}
