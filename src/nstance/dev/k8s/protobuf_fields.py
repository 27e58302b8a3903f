"""The protobuf messages that kubectl sends: the numbers, names and types of their fields.

A type is the name of a message, `int`, `bool`, `bytes`, `{}` (a map of strings), `{bytes}` or `{Quantity}`; the default is a
string. `*` before it: a list. `-`: ignored (the server writes the status). `!` after it: sent only if it is set, so zero
and empty are values; all other fields are always sent and are dropped if empty.
"""

_POD = "1 metadata ObjectMeta, 2 spec PodSpec"
_PLAIN = "1 metadata ObjectMeta"

FIELDS = {
    "ObjectMeta": (
        "1 name, 2 generateName, 3 namespace, 4 selfLink -, 5 uid, 6 resourceVersion, 7 generation int, "
        "8 creationTimestamp Time, 9 deletionTimestamp Time, 10 deletionGracePeriodSeconds int, 11 labels {}, "
        "12 annotations {}, 13 ownerReferences *OwnerReference, 14 finalizers *, 17 managedFields -"
    ),
    "OwnerReference": "1 kind, 3 name, 4 uid, 5 apiVersion, 6 controller bool!, 7 blockOwnerDeletion bool!",
    "LabelSelector": "1 matchLabels {}, 2 matchExpressions *LabelSelectorRequirement",
    "LabelSelectorRequirement": "1 key, 2 operator, 3 values *",
    "LocalObjectReference": "1 name",
    "ObjectReference": "1 kind, 2 namespace, 3 name, 4 uid, 5 apiVersion, 6 resourceVersion, 7 fieldPath",
    # options and subresources
    "DeleteOptions": (
        "1 gracePeriodSeconds int!, 2 preconditions Preconditions, 3 orphanDependents bool!, 4 propagationPolicy, 5 dryRun *, "
        "6 ignoreStoreReadErrorWithClusterBreakingPotential -"
    ),
    "Preconditions": "1 uid, 2 resourceVersion",
    "Eviction": "1 metadata ObjectMeta, 2 deleteOptions DeleteOptions",
    "TokenRequest": "1 metadata ObjectMeta, 2 spec TokenRequestSpec, 3 status -",
    "TokenRequestSpec": "1 audiences *, 3 boundObjectRef BoundObjectReference, 4 expirationSeconds int!",
    "BoundObjectReference": "1 kind, 2 apiVersion, 3 name, 4 uid",
    "SelfSubjectReview": "1 metadata ObjectMeta, 2 status -",
    "SelfSubjectAccessReview": "1 metadata ObjectMeta, 2 spec SelfSubjectAccessReviewSpec, 3 status -",
    "SelfSubjectAccessReviewSpec": "1 resourceAttributes ResourceAttributes, 2 nonResourceAttributes NonResourceAttributes",
    "ResourceAttributes": (
        "1 namespace, 2 verb, 3 group, 4 version, 5 resource, 6 subresource, 7 name, 8 fieldSelector -, 9 labelSelector -"
    ),
    "NonResourceAttributes": "1 path, 2 verb",
    "SelfSubjectRulesReview": "1 metadata ObjectMeta, 2 spec SelfSubjectRulesReviewSpec, 3 status -",
    "SelfSubjectRulesReviewSpec": "1 namespace",
    # core
    "Namespace": "1 metadata ObjectMeta, 2 spec NamespaceSpec, 3 status -",
    "NamespaceSpec": "1 finalizers *",
    "Secret": f"{_PLAIN}, 2 data {{bytes}}, 3 type, 4 stringData {{}}, 5 immutable bool!",
    "ConfigMap": f"{_PLAIN}, 2 data {{}}, 3 binaryData {{bytes}}, 4 immutable bool!",
    "ServiceAccount": (
        f"{_PLAIN}, 2 secrets *ObjectReference, 3 imagePullSecrets *LocalObjectReference, "
        "4 automountServiceAccountToken bool!"
    ),
    "Service": f"{_PLAIN}, 2 spec ServiceSpec, 3 status -",
    "ServiceSpec": (
        "1 ports *ServicePort, 2 selector {}, 3 clusterIP, 4 type, 5 externalIPs *, 7 sessionAffinity, 8 loadBalancerIP, "
        "9 loadBalancerSourceRanges *, 10 externalName, 11 externalTrafficPolicy, 12 healthCheckNodePort int, "
        "13 publishNotReadyAddresses bool, 17 ipFamilyPolicy, 18 clusterIPs *, 19 ipFamilies *"
    ),
    "ServicePort": "1 name, 2 protocol, 3 port int, 4 targetPort IntOrString, 5 nodePort int, 6 appProtocol",
    "ResourceQuota": f"{_PLAIN}, 2 spec ResourceQuotaSpec, 3 status -",
    "ResourceQuotaSpec": "1 hard {Quantity}, 2 scopes *",
    "Pod": f"{_POD}, 3 status -",
    "PodTemplateSpec": _POD,
    "PodSpec": (
        "2 containers *Container, 3 restartPolicy, 4 terminationGracePeriodSeconds int!, 5 activeDeadlineSeconds int!, "
        "6 dnsPolicy, 7 nodeSelector {}, 8 serviceAccountName, 9 serviceAccount, 10 nodeName, 11 hostNetwork bool, "
        "12 hostPID bool, 13 hostIPC bool, 14 securityContext PodSecurityContext, 15 imagePullSecrets *LocalObjectReference, "
        "16 hostname, 17 subdomain, 19 schedulerName, 20 initContainers *Container, 21 automountServiceAccountToken bool!, "
        "24 priorityClassName, 25 priority int!"
    ),
    "PodSecurityContext": "2 runAsUser int!, 3 runAsNonRoot bool!, 5 fsGroup int!, 6 runAsGroup int!",
    "Container": (
        "1 name, 2 image, 3 command *, 4 args *, 5 workingDir, 6 ports *ContainerPort, 7 env *EnvVar, "
        "8 resources ResourceRequirements, 13 terminationMessagePath, 14 imagePullPolicy, 16 stdin bool, "
        "17 stdinOnce bool, 18 tty bool, 20 terminationMessagePolicy"
    ),
    "ContainerPort": "1 name, 2 hostPort int, 3 containerPort int, 4 protocol, 5 hostIP",
    "EnvVar": "1 name, 2 value",
    "ResourceRequirements": "1 limits {Quantity}, 2 requests {Quantity}",
    # other groups
    "Deployment": f"{_PLAIN}, 2 spec DeploymentSpec, 3 status -",
    "DeploymentSpec": (
        "1 replicas int!, 2 selector LabelSelector!, 3 template PodTemplateSpec, 4 strategy DeploymentStrategy, "
        "5 minReadySeconds int, 6 revisionHistoryLimit int!, 7 paused bool, 9 progressDeadlineSeconds int!"
    ),
    "DeploymentStrategy": "1 type, 2 rollingUpdate RollingUpdateDeployment",
    "RollingUpdateDeployment": "1 maxUnavailable IntOrString, 2 maxSurge IntOrString",
    "Job": f"{_PLAIN}, 2 spec JobSpec, 3 status -",
    "JobSpec": (
        "1 parallelism int!, 2 completions int!, 3 activeDeadlineSeconds int!, 4 selector LabelSelector!, "
        "5 manualSelector bool!, 6 template PodTemplateSpec, 7 backoffLimit int!, 8 ttlSecondsAfterFinished int!, "
        "9 completionMode, 10 suspend bool!"
    ),
    "PriorityClass": f"{_PLAIN}, 2 value int, 3 globalDefault bool, 4 description, 5 preemptionPolicy",
    "PodDisruptionBudget": f"{_PLAIN}, 2 spec PodDisruptionBudgetSpec, 3 status -",
    "PodDisruptionBudgetSpec": (
        "1 minAvailable IntOrString, 2 selector LabelSelector!, 3 maxUnavailable IntOrString, 4 unhealthyPodEvictionPolicy"
    ),
    "Role": f"{_PLAIN}, 2 rules *PolicyRule",
    "ClusterRole": f"{_PLAIN}, 2 rules *PolicyRule, 3 aggregationRule AggregationRule",
    "PolicyRule": "1 verbs *, 2 apiGroups *, 3 resources *, 4 resourceNames *, 5 nonResourceURLs *",
    "AggregationRule": "1 clusterRoleSelectors *LabelSelector",
    "RoleBinding": f"{_PLAIN}, 2 subjects *Subject, 3 roleRef RoleRef",
    "ClusterRoleBinding": f"{_PLAIN}, 2 subjects *Subject, 3 roleRef RoleRef",
    "RoleRef": "1 apiGroup, 2 kind, 3 name",
    "Subject": "1 kind, 2 apiGroup, 3 name, 4 namespace",
}
