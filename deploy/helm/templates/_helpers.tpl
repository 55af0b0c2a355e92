{{- define "fila.name" -}}
{{- if contains "fila" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-fila" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "fila.selector" -}}
app.kubernetes.io/name: fila-cluster
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fila.labels" -}}
{{ include "fila.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* What does not fit together is said before anything is installed. */}}
{{- define "fila.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.replication.log) }}
{{- fail (printf "replicas: %d without replication.log: several hosts need a Kafka, kafka://HOST:PORT" (int .Values.replicas)) }}
{{- end }}
{{- if and (not .Values.auth.enabled) (not .Values.insecure) }}
{{- fail "auth.enabled is false: set it, with auth.secret, or say insecure: true if only trusted pods reach this namespace" }}
{{- end }}
{{- if and .Values.auth.enabled .Values.dashboard.enabled (not .Values.dashboard.tlsSecret) }}
{{- fail "dashboard.tlsSecret is empty: with auth.enabled name a Secret of type kubernetes.io/tls, or set dashboard.enabled to false" }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.dashboard.enabled) }}
{{- fail "serviceMonitor.enabled needs dashboard.enabled: the dashboard's address serves the metrics" }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled .Values.auth.enabled (not .Values.serviceMonitor.keySecret) }}
{{- fail "serviceMonitor.keySecret is empty: with auth.enabled name a Secret whose key `key` is an API key for /metrics" }}
{{- end }}
{{- end }}

{{/* fila.toml: what the values say, and the sections of config over it. */}}
{{- define "fila.toml" -}}
{{- $name := include "fila.name" . }}
{{- $server := dict "listen_addr" "0.0.0.0:5555" "data_dir" "/var/lib/fila/data" "shards" (int .Values.shards) "workers" (int .Values.workers) }}
{{- $dashboard := dict "enabled" .Values.dashboard.enabled }}
{{- $toml := dict "server" $server "dashboard" $dashboard "auth" (dict "enabled" .Values.auth.enabled) }}
{{- if .Values.dashboard.enabled }}
{{- $service := printf "%s-dashboard" $name }}
{{- $names := list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) (printf "%s.%s.svc.cluster.local" $service .Release.Namespace) }}
{{- $_ := set $dashboard "listen_addr" "0.0.0.0:8555" }}
{{- $_ := set $dashboard "allowed_hosts" (concat $names .Values.dashboard.allowedHosts) }}
{{- if .Values.dashboard.tlsSecret }}
{{- $_ := set $toml "http" (dict "certificate" "/etc/fila/tls/tls.crt" "key" "/etc/fila/tls/tls.key") }}
{{- end }}
{{- end }}
{{- if .Values.replication.log }}
{{- $_ := set $toml "replication" (dict "log" .Values.replication.log "cluster" .Values.replication.cluster) }}
{{- end }}
{{- mergeOverwrite $toml .Values.config | toToml }}
{{- end }}

{{- define "fila.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "fila.alive" -}}
{{- if .Values.dashboard.enabled -}}
httpGet: {path: /healthz, port: dashboard, scheme: {{ ternary "HTTPS" "HTTP" (not (empty .Values.dashboard.tlsSecret)) }}}
{{- else -}}
tcpSocket: {port: clients}
{{- end }}
{{- end }}
