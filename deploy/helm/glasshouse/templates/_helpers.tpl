{{- define "glasshouse.name" -}}
{{- if contains "glasshouse" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-glasshouse" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "glasshouse.selector" -}}
app.kubernetes.io/name: glasshouse
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "glasshouse.labels" -}}
{{ include "glasshouse.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "glasshouse.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "glasshouse.keys" -}}
{{ .Values.keys.existingSecret | default (printf "%s-keys" (include "glasshouse.name" .)) }}
{{- end }}

{{- define "glasshouse.database" -}}
{{ .Values.database.existingSecret | default (printf "%s-database" (include "glasshouse.name" .)) }}
{{- end }}

{{/* The environment of daemons. Settings in it override those of the file. */}}
{{- define "glasshouse.env" -}}
- name: GLASSHOUSE_GATEWAY_DB
  valueFrom:
    secretKeyRef:
      name: {{ include "glasshouse.database" . }}
      key: {{ .Values.database.key }}
{{- if .Values.objects.credentialsSecret }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ $.Values.objects.credentialsSecret }}
      key: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The files of a daemon: its configuration and the keys of the fleet. */}}
{{- define "glasshouse.settings" -}}
- name: settings
  projected:
    defaultMode: 0440
    sources:
      - configMap:
          name: {{ include "glasshouse.name" .root }}-{{ .component }}
      - secret:
          name: {{ include "glasshouse.keys" .root }}
          items:
            - {key: authority.pem, path: keys/authority.pem}
            - {key: authority.key, path: keys/authority.key}
            - {key: secrets.key, path: keys/secrets.key}
            - {key: runs.key, path: keys/runs.key}
{{- end }}

{{/* The settings that all daemons have. */}}
{{- define "glasshouse.shared" -}}
gateway:
  objects: {{ .Values.objects.url | quote }}
fleet:
  keys: /run/glasshouse-settings/keys
{{- end }}

{{/* The request by which the kubelet, which is on the same host, checks the daemon of a node. */}}
{{- define "glasshouse.nodeHealth" -}}
{{- $host := regexReplaceAll ":[0-9]+$" .Values.node.listen "" | trimPrefix "[" | trimSuffix "]" -}}
{{- if has $host (list "" "0.0.0.0" "::") }}{{ $host = "127.0.0.1" }}{{ end -}}
{host: {{ quote $host }}, port: {{ regexFind "[0-9]+$" .Values.node.listen }}, path: /health/ready, scheme: {{ ternary "HTTPS" "HTTP" (hasKey .Values.node.config "tls") }}}
{{- end }}
