{{- define "nstance.labels" -}}
app.kubernetes.io/name: nstance-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "nstance.selector" -}}
app.kubernetes.io/name: nstance-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
