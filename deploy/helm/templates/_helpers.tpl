{{/* Labels by which Services, budgets and policies find the pods; they never change. */}}
{{- define "hummingbird.labels" -}}
app.kubernetes.io/name: hummingbird
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .Values.role }}
{{- end }}

{{/* Name and labels of an object. Input: a list of the root and of the name's end. */}}
{{- define "hummingbird.metadata" -}}
{{- $root := index . 0 -}}
name: {{ $root.Release.Name }}{{ index . 1 }}
labels:
  {{- include "hummingbird.labels" $root | nindent 2 }}
  app.kubernetes.io/managed-by: {{ $root.Release.Service }}
  helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{/* How many pods there may be. */}}
{{- define "hummingbird.most" -}}
{{ .Values.scaling.enabled | ternary .Values.scaling.most .Values.replicas }}
{{- end }}

{{/* The name under which others reach a pod. Input: a list of the root and of the group, "$(GROUP)" in the pod itself. */}}
{{- define "hummingbird.host" -}}
{{- $root := index . 0 -}}
{{- $service := ternary "" "-g{group}" (eq $root.Values.role "he-server") -}}
{{- $root.Values.host | default (printf "%s%s.%s.svc" $root.Release.Name $service $root.Release.Namespace) | replace "{group}" (index . 1) -}}
{{- end }}

{{/* The port of callers. */}}
{{- define "hummingbird.port" -}}
{{ ternary 9000 9100 (eq .Values.role "dealer") }}
{{- end }}

{{/* The Secret with this release's certificate. */}}
{{- define "hummingbird.secret" -}}
{{ .Values.tls.secret | default (printf "%s-tls" .Release.Name) }}
{{- end }}
