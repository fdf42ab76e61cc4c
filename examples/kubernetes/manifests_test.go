package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/pgleases/pgleases/internal/pgtest"
)

// manifest reads a Deployment as the API server does: a field that is unknown, twice there or of another type is an error.
func manifest(t *testing.T, name string) (apps.Deployment, core.Container) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var d apps.Deployment
	deployment, _, _ := strings.Cut(string(text), "\n---\n")
	if err := yaml.UnmarshalStrict([]byte(deployment), &d); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(d.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("%s: %d containers", name, len(d.Spec.Template.Spec.Containers))
	}
	return d, d.Spec.Template.Spec.Containers[0]
}

func TestTheManifestsAreDeploymentsThatFitTheirPrograms(t *testing.T) {
	for name, closing := range map[string]time.Duration{
		"worker.yaml": drainTimeout + closeTimeout,
		"leader.yaml": 25*time.Second + 3*time.Second + closeTimeout, // the work, the end of leader.Run
		"run.yaml":    duration(t, "run.yaml", "--grace") + 2*time.Second,
		"serve.yaml":  0,
	} {
		d, c := manifest(t, name)
		if d.APIVersion != "apps/v1" || d.Kind != "Deployment" {
			t.Errorf("%s: %s %s", name, d.APIVersion, d.Kind)
		}
		for _, text := range []string{d.Name, c.Name} {
			if wrong := validation.IsDNS1123Label(text); len(wrong) > 0 {
				t.Errorf("%s: %q: %v", name, text, wrong)
			}
		}
		pod := d.Spec.Template
		for label, value := range d.Spec.Selector.MatchLabels {
			if pod.Labels[label] != value {
				t.Errorf("%s: the selector wants %s=%s, the pod has %v", name, label, value, pod.Labels)
			}
		}
		grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
		if grace < closing+2*time.Second {
			t.Errorf("%s: a grace period of %v, and the program may take %v and 2 s", name, grace, closing)
		}
		for _, variable := range []string{"POD_NAME", "DATABASE_URL"} {
			set := func(e core.EnvVar) bool { return e.Name == variable && e.ValueFrom != nil }
			if (variable != "POD_NAME" || name != "serve.yaml") && !slices.ContainsFunc(c.Env, set) {
				t.Errorf("%s: no %s", name, variable)
			}
		}
		if _, limited := c.Resources.Limits[core.ResourceCPU]; limited {
			t.Errorf("%s: a limit of CPU", name)
		}
	}
	for _, name := range []string{"worker.yaml", "leader.yaml"} {
		_, c := manifest(t, name)
		if len(c.Ports) != 1 || fmt.Sprintf(":%d", c.Ports[0].ContainerPort) != address {
			t.Errorf("%s: ports %v, and the program serves at %s", name, c.Ports, address)
		}
		for path, probe := range map[string]*core.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			if get := probe.HTTPGet; get.Path != path || get.Port.StrVal != c.Ports[0].Name {
				t.Errorf("%s: %s: %+v", name, path, get)
			}
		}
	}
}

// duration returns what a flag of a manifest's arguments says.
func duration(t *testing.T, name, flag string) time.Duration {
	t.Helper()
	_, c := manifest(t, name)
	value := c.Args[slices.Index(c.Args, flag)+1]
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// The command line of run.yaml is executed as a kubelet does it, by three pods. The program says in which it runs.
func TestManifestPodRunsAndAnotherTakesOver(t *testing.T) {
	dir := t.TempDir()
	build := exec.Command("go", "build", "-C", "../..", "-o", dir, "./cmd/pgleases")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const program = "#!/bin/sh\necho \"$POD_NAME begins with $1\"\nexec sleep 1000\n"
	if err := os.WriteFile(filepath.Join(dir, "make-reports"), []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	d, c := manifest(t, "run.yaml")
	out := new(output)
	url := pgtest.MigratedDatabase(t)
	pods := make(map[string]*exec.Cmd)
	for n := range *d.Spec.Replicas {
		name := fmt.Sprintf("%s-%d", d.Name, n)
		words := slices.Concat(c.Command, c.Args)
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "$(POD_NAME)", name)
		}
		pod := exec.Command(filepath.Join(dir, words[0]), words[1:]...)
		pod.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "POD_NAME="+name, "DATABASE_URL="+url)
		pod.Stdout, pod.Stderr = out, out
		if err := pod.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = pod.Wait(); close(ended) }()
		t.Cleanup(func() {
			_ = pod.Process.Signal(syscall.SIGTERM)
			receive(t, name+" ends", ended)
		})
		pods[name] = pod
	}
	begun := regexp.MustCompile(`(\S+) begins with --daily`)
	runs := func() [][]string { return begun.FindAllStringSubmatch(out.String(), -1) }
	until(t, "it runs in one of them", func() bool { return len(runs()) > 0 })
	first := runs()[0][1]
	if err := pods[first].Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	until(t, "another one takes over", func() bool { return len(runs()) > 1 })
	if all := runs(); len(all) != 2 || all[1][1] == first {
		t.Errorf("it ran in %q", all)
	}
}

// output is what several processes wrote.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func TestTheServiceLeadsToTheDashboard(t *testing.T) {
	d, c := manifest(t, "serve.yaml")
	text, err := os.ReadFile("serve.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, service, _ := strings.Cut(string(text), "\n---\n")
	var s core.Service
	if err := yaml.UnmarshalStrict([]byte(service), &s); err != nil {
		t.Fatal(err)
	}
	for label, value := range s.Spec.Selector {
		if d.Spec.Template.Labels[label] != value {
			t.Errorf("the service selects %s=%s, the pod has %v", label, value, d.Spec.Template.Labels)
		}
	}
	listen := fmt.Sprintf("--listen=:%d", c.Ports[0].ContainerPort)
	if !slices.Contains(c.Args, listen) || s.Spec.Ports[0].TargetPort.StrVal != c.Ports[0].Name {
		t.Errorf("args %v, ports %v and %v: want %s", c.Args, c.Ports, s.Spec.Ports, listen)
	}
}
