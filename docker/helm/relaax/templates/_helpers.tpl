{{/* Names. A StatefulSet's may have 52 characters, of which its component takes up to 17. */}}
{{- define "relaax.fullname" -}}
{{- $name := ternary .Release.Name (printf "%s-relaax" .Release.Name) (contains "relaax" .Release.Name) -}}
{{- $name | trunc 35 | trimSuffix "-" -}}
{{- end -}}

{{- define "relaax.selector" -}}
app.kubernetes.io/name: relaax
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "relaax.labels" -}}
{{ include "relaax.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: relaax
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- end -}}

{{- define "relaax.metadata" -}}
name: {{ include "relaax.fullname" .root }}-{{ .name | default .component }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "relaax.labels" . | nindent 2 }}
{{- end -}}

{{- define "relaax.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* The configuration of the experiment, and the folder of its run. */}}
{{- define "relaax.config" -}}
{{ ternary "/experiment/configuration.yaml" (printf "/config/%s.yaml" .Values.experiment) (ne .Values.configuration "") }}
{{- end -}}

{{- define "relaax.run" -}}
{{ .Values.run | default (ternary .Release.Name .Values.experiment (ne .Values.configuration "")) }}
{{- end -}}

{{- define "relaax.tokens" -}}
{{ .Values.auth.existingSecret | default (printf "%s-tokens" (include "relaax.fullname" .)) }}
{{- end -}}

{{- define "relaax.certificates" -}}
{{ .Values.tls.existingSecret | default (printf "%s-tls" (include "relaax.fullname" .)) }}
{{- end -}}

{{- define "relaax.claim" -}}
{{ .Values.storage.volume.existingClaim | default (printf "%s-data" (include "relaax.fullname" .)) }}
{{- end -}}

{{/* Whether TensorBoard runs in the pod of the parameter server: a ReadWriteOnce volume can be mounted on one node only. */}}
{{- define "relaax.boardBeside" -}}
{{- if and .Values.tensorboard.enabled (not .Values.storage.s3.bucket) (not (has "ReadWriteMany" .Values.storage.volume.accessModes)) -}}
true
{{- end -}}
{{- end -}}

{{/* HOST:PORT of each shard of a component, by the pod names of its headless Service. */}}
{{- define "relaax.shards" -}}
{{- $service := printf "%s-%s" (include "relaax.fullname" .root) .component -}}
{{- $addresses := list -}}
{{- range $shard := until (int .shards) -}}
{{- $addresses = append $addresses (printf "%s-%d.%s:%d" $service $shard $service (int $.port)) -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end -}}

{{- define "relaax.parameterServers" -}}
{{ include "relaax.shards" (dict "root" . "component" "parameter-server" "shards" .Values.parameterServer.shards "port" 7000) }}
{{- end -}}

{{- define "relaax.replayServers" -}}
{{ include "relaax.shards" (dict "root" . "component" "replay-server" "shards" .Values.replayServer.shards "port" 7003) }}
{{- end -}}

{{/* Checks that the schema cannot express. Each error names the value and the way out. */}}
{{- define "relaax.check" -}}
{{- $auth := .Values.auth -}}
{{- $given := or $auth.token $auth.parameterServerToken $auth.replayServerToken -}}
{{- if and $auth.existingSecret $given -}}
{{- fail "auth.existingSecret and tokens are both set: remove one of them" -}}
{{- else if and $auth.allowAnonymous (or $auth.existingSecret $given) -}}
{{- fail "auth.allowAnonymous admits every client, and tokens are set: remove one of them" -}}
{{- else if not (or $auth.allowAnonymous $auth.existingSecret) -}}
{{- $how := "`relaax keys DIR` makes it; or name a Secret in auth.existingSecret, or set auth.allowAnonymous for a network that you trust" -}}
{{- if not $auth.token -}}{{- fail (printf "auth.token, the token of environments, is missing: %s" $how) -}}{{- end -}}
{{- if not $auth.parameterServerToken -}}{{- fail (printf "auth.parameterServerToken is missing: %s" $how) -}}{{- end -}}
{{- if and .Values.replayServer.shards (not $auth.replayServerToken) -}}{{- fail (printf "auth.replayServerToken is missing: %s" $how) -}}{{- end -}}
{{- end -}}
{{- $tls := .Values.tls -}}
{{- $files := or $tls.ca $tls.server $tls.serverKey $tls.worker $tls.workerKey -}}
{{- if and $tls.enabled $tls.existingSecret $files -}}
{{- fail "tls.existingSecret and certificates are both set: remove one of them" -}}
{{- else if and $tls.enabled (not $tls.existingSecret) -}}
{{- range $name := list "ca" "server" "serverKey" "worker" "workerKey" -}}
{{- if not (get $tls $name) -}}{{- fail (printf "tls.%s is missing: `relaax keys DIR` makes it; or name a Secret in tls.existingSecret" $name) -}}{{- end -}}
{{- end -}}
{{- else if and (not $tls.enabled) (or $tls.existingSecret $files) -}}
{{- fail "certificates are set, and tls.enabled is false: set it to true, or remove them" -}}
{{- end -}}
{{- $volume := .Values.storage.volume -}}
{{- if and (gt (int .Values.parameterServer.shards) 1) (not .Values.storage.s3.bucket) (not (has "ReadWriteMany" $volume.accessModes)) -}}
{{- fail (printf "parameterServer.shards is %d, and all shards write to one location: set storage.s3.bucket, or storage.volume.accessModes to [ReadWriteMany] with a storage class that supports it" (int .Values.parameterServer.shards)) -}}
{{- end -}}
{{- if and .Values.learner.replicas (not .Values.replayServer.shards) -}}
{{- fail (printf "learner.replicas is %d, and learners sample from replay servers: set replayServer.shards, or learner.replicas to 0" (int .Values.learner.replicas)) -}}
{{- end -}}
{{- $scaling := .Values.autoscaling -}}
{{- if and (ne $scaling.kind "none") (lt (int $scaling.maxReplicas) (int $scaling.minReplicas)) -}}
{{- fail (printf "autoscaling.maxReplicas is %d, less than minReplicas %d: increase it" (int $scaling.maxReplicas) (int $scaling.minReplicas)) -}}
{{- end -}}
{{- if and (eq $scaling.kind "keda") (not $scaling.prometheus) -}}
{{- fail "autoscaling.prometheus is missing: set the address that KEDA queries, such as http://prometheus.monitoring:9090" -}}
{{- end -}}
{{- if and (ne $scaling.kind "none") (eq .Values.monitoring.kind "none") -}}
{{- fail (printf "autoscaling.kind is %s, and Prometheus does not collect metrics: set monitoring.kind to annotations or serviceMonitor" $scaling.kind) -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.environments -}}
{{- if has .name $names -}}{{- fail (printf "environments: two fleets have the name %s: rename one of them" .name) -}}{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}

{{/* Number of places needed: connections, the buffer, and connections refused for lack of room in the last minute, at most
one server's. Divided by the places of a server, it is the number of servers. */}}
{{- define "relaax.wantedPlaces" -}}
{{- $pods := printf "namespace=\"%s\",pod=~\"%s-rlx-server-.*\"" .Release.Namespace (include "relaax.fullname" .) -}}
sum(relaax_rlx_server_workers{ {{- $pods -}} }) + {{ int .Values.autoscaling.buffer }} + clamp_max(sum(increase(relaax_rlx_server_refusals_total{ {{- $pods -}} ,reason=~"max_workers|memory"}[1m])) or vector(0), {{ int .Values.rlxServer.maxWorkers }})
{{- end -}}
