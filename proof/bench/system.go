package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// describeSystem says what the figures were measured on.
func describeSystem(l *lab) []string {
	on := ", with fsync, its data on disk; for what one heartbeat writes, and for moves, in memory"
	if l.durable == l.fast {
		on = ", in memory, without fsync"
	}
	lines := []string{
		fmt.Sprintf("machine: %s, %s, %s", processorModel(), count(runtime.NumCPU(), "core"), kernel()),
		"Go " + strings.TrimPrefix(runtime.Version(), "go") + ", pgx " + moduleVersion("github.com/jackc/pgx/v5"),
		withoutPlace(l.durable.Describe()) + on,
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		average, _, _ := strings.Cut(string(load), " ")
		lines = append(lines, "load average of the minute before: "+average)
	}
	if l.bouncer != nil {
		lines = append(lines, withoutPlace(l.bouncer.Describe()))
	}
	return lines
}

func withoutPlace(description string) string {
	name, _, _ := strings.Cut(description, " from ")
	return name
}

func processorModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // elsewhere it stays unknown
	for line := range strings.Lines(string(text)) {
		if name, model, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(model)
		}
	}
	return runtime.GOARCH
}

func kernel() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return runtime.GOOS
	}
	return runtime.GOOS + " " + strings.TrimSpace(string(release))
}

func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == path {
				return strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "of unknown version"
}
