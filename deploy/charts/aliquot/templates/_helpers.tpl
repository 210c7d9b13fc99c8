{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* What every object of ours carries; called with a dict of root and name. */ -}}
{{- define "aliquot.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: aliquot
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- /* What a pod carries: nothing that changes from one version to the next. */ -}}
{{- define "aliquot.podLabels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: aliquot
{{- end -}}

{{- /* An image's full name; called with a dict of root and image. */ -}}
{{- define "aliquot.image" -}}
{{- $images := .root.Values.images -}}
{{- if $images.registry }}{{ trimSuffix "/" $images.registry }}/{{ end -}}
{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default $images.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "aliquot.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Settings as the programs read them: templateGraceS becomes ALIQUOT_TEMPLATE_GRACE_S. */ -}}
{{- define "aliquot.environment" -}}
{{- range $name, $value := . }}
- name: ALIQUOT_{{ $name | snakecase | upper }}
{{- if kindIs "slice" $value }}
  value: {{ join "," $value | quote }}
{{- else if and (kindIs "float64" $value) (eq (floor $value) $value) }}
  value: {{ int64 $value | quote }}
{{- else }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Where the API server finds a webhook; called with a dict of root and path. */ -}}
{{- define "aliquot.clientConfig" -}}
clientConfig: # caBundle: the controller writes it, or cert-manager
  service:
    name: aliquot-webhook
    namespace: {{ .root.Release.Namespace }}
    path: {{ .path }}
    port: 443
{{- end -}}

{{- /* The resources that bring a pod to us, as a list in CEL. */ -}}
{{- define "aliquot.resourceNames" -}}
{{- $r := .Values.requests -}}
{{- toJson (list $r.resourceCount $r.resourceMemory $r.resourceMemoryPercent $r.resourceCores $r.resourcePriority) | replace "," ", " -}}
{{- end -}}

{{- /* The classes whose claims are checked and counted, as a list in CEL. */ -}}
{{- define "aliquot.deviceClasses" -}}
{{- toJson .Values.requests.deviceClasses | replace "," ", " -}}
{{- end -}}

{{- /* Who makes the claims of pods, as a list in CEL. */ -}}
{{- define "aliquot.claimMakers" -}}
{{- toJson .Values.webhook.settings.claimMakers | replace "," ", " -}}
{{- end -}}

{{- /* Who writes claim templates, as a string in CEL. */ -}}
{{- define "aliquot.webhookUser" -}}
"system:serviceaccount:{{ .Release.Namespace }}:aliquot-webhook"
{{- end -}}

{{- define "aliquot.certManagerAnnotation" -}}
{{- if .Values.certManager.enabled }}
  annotations:
    cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/aliquot-webhook
{{- end }}
{{- end -}}

{{- /* What a pod of the control plane may do: nothing. */ -}}
{{- define "aliquot.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  {{- if .fsGroup }}
  fsGroup: 65532
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "aliquot.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Where pods of the control plane run, so that the death of a node leaves one of them. */ -}}
{{- define "aliquot.placement" -}}
{{- with .part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
affinity:
{{- if .part.affinity }}
{{- toYaml .part.affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {app.kubernetes.io/name: {{ .name }}}
{{- end }}
{{- end -}}

{{- /* The nodes whose GPUs are ours. Simulated GPUs take every node but those with real ones. */ -}}
{{- define "aliquot.gpuNodes" -}}
{{- if .Values.simulatedGpu.enabled }}
{{- with omit .Values.agent.nodeSelector "nvidia.com/gpu.present" }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: nvidia.com/gpu.present, operator: NotIn, values: ["true"]}
{{- else }}
{{- with .Values.agent.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.agent.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .Values.agent.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{- /* A hook; called with a dict of root, on (events), weight and name. */ -}}
{{- define "aliquot.hook" -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ .root.Release.Namespace }}
{{- end }}
labels: {{- include "aliquot.labels" (dict "root" .root "name" "aliquot-hooks") | nindent 2 }}
annotations:
  helm.sh/hook: {{ .on }}
  helm.sh/hook-weight: {{ .weight | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
  helm.sh/hook-output-log-policy: hook-failed
{{- end -}}

{{- /* A Job of a hook that runs a command of aliquot-controller. */ -}}
{{- define "aliquot.hookJob" -}}
apiVersion: batch/v1
kind: Job
metadata: {{- include "aliquot.hook" . | nindent 2 }}
spec:
  backoffLimit: 0
  activeDeadlineSeconds: 240
  ttlSecondsAfterFinished: 600
  template:
    metadata:
      labels: {{- include "aliquot.podLabels" (dict "name" "aliquot-hooks") | nindent 8 }}
    spec:
      restartPolicy: Never
      serviceAccountName: aliquot-hooks
      {{- include "aliquot.pullSecrets" .root | nindent 6 }}
      {{- with .root.Values.controller.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.controller.tolerations }}
      tolerations: {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- include "aliquot.podSecurity" dict | nindent 6 }}
      containers:
      - name: {{ .command }}
        image: {{ include "aliquot.image" (dict "root" .root "image" .root.Values.images.webhook) }}
        imagePullPolicy: {{ .root.Values.images.pullPolicy }}
        command: [aliquot-controller, {{ .command }}]
        env:
        - {name: ALIQUOT_NAMESPACE, value: {{ .root.Release.Namespace }}}
        {{- include "aliquot.containerSecurity" . | nindent 8 }}
        resources:
          requests: {cpu: 10m, memory: 64Mi}
{{- end -}}
