//go:build apiserver

package deploy

import (
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	core1 "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	"k8s.io/kubernetes/pkg/apis/rbac"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	rbacvalidation "k8s.io/kubernetes/pkg/apis/rbac/validation"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/pod-security-admission/api"
	security "k8s.io/pod-security-admission/policy"
)

// validate applies the defaults of the API server to an object, and returns what it would refuse.
func validate(t *testing.T, o meta.Object) field.ErrorList {
	t.Helper()
	legacyscheme.Scheme.Default(o.(runtime.Object))
	o.SetNamespace("agents")
	internal, err := legacyscheme.Scheme.UnsafeConvertToVersion(o.(runtime.Object), runtime.InternalGroupVersioner)
	if err != nil {
		t.Fatal(err)
	}
	switch o := internal.(type) {
	case *apps.DaemonSet:
		return appsvalidation.ValidateDaemonSet(o, corevalidation.PodValidationOptions{})
	case *apps.StatefulSet:
		return appsvalidation.ValidateStatefulSet(o, appsvalidation.StatefulSetValidationOptions{}, corevalidation.PodValidationOptions{})
	case *batch.Job:
		o.Spec.Selector = &meta.LabelSelector{MatchLabels: o.Spec.Template.Labels}
		return batchvalidation.ValidateJobSpec(&o.Spec, nil, field.NewPath("spec"), corevalidation.PodValidationOptions{})
	case *core.ConfigMap:
		return corevalidation.ValidateConfigMap(o)
	case *core.Secret:
		return corevalidation.ValidateSecret(o)
	case *core.Service:
		if o.Spec.ClusterIP != "" { // as the API server completes it
			o.Spec.ClusterIPs = []string{o.Spec.ClusterIP}
		}
		return corevalidation.ValidateServiceCreate(o)
	case *core.ServiceAccount:
		return corevalidation.ValidateServiceAccount(o)
	case *networking.NetworkPolicy:
		return networkingvalidation.ValidateNetworkPolicy(o, networkingvalidation.NetworkPolicyValidationOptions{})
	case *networking.Ingress:
		return networkingvalidation.ValidateIngressCreate(o)
	case *policy.PodDisruptionBudget:
		return policyvalidation.ValidatePodDisruptionBudget(o, policyvalidation.PodDisruptionBudgetValidationOptions{})
	case *rbac.Role:
		return rbacvalidation.ValidateRole(o)
	case *rbac.RoleBinding:
		return rbacvalidation.ValidateRoleBinding(o)
	}
	t.Fatalf("no validation of %T", internal)
	return nil
}

// TestAPIServerAccepts validates the objects with the code of the API server.
func TestAPIServerAccepts(t *testing.T) {
	capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true})
	for _, values := range []m{{"database": m{"url": "postgres://db/g"}}, allOptions} {
		r := install(t, values)
		for key, o := range r.objects {
			switch o.(type) {
			case *monitoring.ServiceMonitor, *monitoring.PodMonitor: // the API server validates them by their schema
				continue
			}
			for _, err := range validate(t, o) {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
}

// TestPodSecurity checks the Pods against the Pod Security Standards.
func TestPodSecurity(t *testing.T) {
	evaluator, err := security.NewEvaluator(security.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	allows := func(level api.Level, p core1.PodTemplateSpec) bool {
		for _, r := range evaluator.EvaluatePod(api.LevelVersion{Level: level, Version: api.LatestVersion()}, &p.ObjectMeta, &p.Spec) {
			if !r.Allowed {
				t.Logf("%s: %s (%s)", level, r.ForbiddenReason, r.ForbiddenDetail)
				return false
			}
		}
		return true
	}
	for _, values := range []m{{"database": m{"url": "postgres://db/g"}}, allOptions} {
		for key, p := range install(t, values).pods() {
			node := key == "DaemonSet fleet-glasshouse-node"
			if got := allows(api.LevelRestricted, p); got == node {
				t.Errorf("%s satisfies the level restricted: %t, want %t", key, got, !node)
			}
		}
	}
}
