package release

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/notes"
)

const (
	modulePath = "github.com/pgleases/pgleases"
	version    = "v0.99.0"  // of the module here, as if it were released
	oldest     = "go1.25.0" // the oldest Go that README.md promises
)

// run runs a command in a folder with variables added, and returns what it prints.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, text)
	}
	return strings.TrimSpace(string(text))
}

// publish makes a proxy of files that has the module here, and returns its URL.
func publish(t *testing.T, path, dir string) string {
	t.Helper()
	proxy := t.TempDir()
	versions := filepath.Join(proxy, filepath.FromSlash(path), "@v")
	ok(t, os.MkdirAll(versions, 0o755))
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	ok(t, err)
	archive, err := os.Create(filepath.Join(versions, version+".zip"))
	ok(t, err)
	ok(t, zip.CreateFromDir(archive, module.Version{Path: path, Version: version}, dir))
	ok(t, archive.Close())
	files := map[string]string{
		"list":            version + "\n",
		version + ".info": `{"Version":"` + version + `"}`,
		version + ".mod":  string(mod),
	}
	for name, text := range files {
		ok(t, os.WriteFile(filepath.Join(versions, name), []byte(text), 0o644))
	}
	return "file://" + proxy
}

func ok(t *testing.T, err error) {
	t.Helper()
	testkit.OK(t, err)
}

const application = `package main

import (
	"context"
	"fmt"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/schedule"
)

func main() {
	_, err := pgleases.NewClient(context.Background(), nil)
	fmt.Println(err, schedule.Cron("0 2 * * *", "UTC").Err(), lock.ErrHeld != nil)
}
`

// A user has no copy of the repository, no workspace, and perhaps the oldest Go that is promised.
func TestTheCommandAndALibraryUserInstall(t *testing.T) {
	programs := map[string]string{"this Go": "go"}
	ctx := context.WithoutCancel(t.Context())
	goroot := exec.CommandContext(ctx, "env", "GOTOOLCHAIN="+oldest, "go", "env", "GOROOT")
	root, err := goroot.Output()
	if err != nil {
		notes.Lacks(t, oldest, fmt.Sprintf("%s cannot be had: %v", oldest, err))
	}
	programs[oldest] = filepath.Join(strings.TrimSpace(string(root)), "bin", "go")
	cache := run(t, ".", nil, "go", "env", "GOMODCACHE")
	dir, err := filepath.Abs("../..")
	ok(t, err)
	proxy := publish(t, modulePath, dir)
	for name, program := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // both mostly wait for the disk, if the build cache has what -trimpath makes
			bin, app := t.TempDir(), t.TempDir()
			env := []string{
				"GOPROXY=" + proxy + ",file://" + filepath.Join(cache, "cache", "download"),
				"GOSUMDB=off", "GOWORK=off", "GOTOOLCHAIN=local", "GOFLAGS=-modcacherw -trimpath",
				"GOMODCACHE=" + t.TempDir(), "GOBIN=" + bin, "CGO_ENABLED=0",
			}
			run(t, bin, env, program, "install", modulePath+"/cmd/pgleases@"+version)
			want := "pgleases " + version + "\ncommit -\nschema version "
			if text := run(t, bin, nil, filepath.Join(bin, "pgleases"), "version"); !strings.Contains(text, want) {
				t.Errorf("the command says %q, want %s", text, version)
			}
			run(t, app, env, program, "mod", "init", "example.com/app")
			ok(t, os.WriteFile(filepath.Join(app, "main.go"), []byte(application), 0o644))
			run(t, app, env, program, "get", modulePath+"@"+version)
			run(t, app, env, program, "mod", "tidy")
			run(t, app, env, program, "vet", ".")
			if text := run(t, app, env, program, "run", "."); !strings.Contains(text, "pool is nil <nil> true") {
				t.Errorf("the application says %q", text)
			}
		})
	}
}
