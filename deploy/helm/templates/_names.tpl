{{- define "nstance.selector" -}}
app.kubernetes.io/name: nstance-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nstance.labels" -}}
{{ include "nstance.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Name, namespace, labels and annotations of an object in the release's namespace: (list $ "name"). */}}
{{- define "nstance.metadata" -}}
{{- $ := index . 0 -}}
name: {{ index . 1 }}
namespace: {{ $.Release.Namespace }}
{{ include "nstance.marks" $ }}
{{- end }}

{{- define "nstance.marks" -}}
labels: {{- include "nstance.labels" . | nindent 2 }}
{{- with .Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Objects without a namespace: two releases must not share them. A namespace has no dot, so the name is unique. */}}
{{- define "nstance.clusterName" -}}
{{ .Release.Namespace }}.{{ .Release.Name }}
{{- end }}

{{- define "nstance.hasMetrics" -}}
{{- if ne (toString .Values.metricsBindAddress) "0" }}yes{{ end }}
{{- end }}

{{- define "nstance.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "nstance.containerSecurity" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- define "nstance.podSecurity" -}}
{runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
{{- end }}
