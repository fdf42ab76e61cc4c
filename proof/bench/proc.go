package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of times in /proc/PID/stat, the same on every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

var errNoProc = errors.New("this system has no /proc")

// A process as /proc/PID/stat tells of it.
type process struct {
	pid, parent int
	own         time.Duration // processor time
	children    time.Duration // of those that have ended
}

// processes returns all that live.
func processes() ([]process, error) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // errs only on a malformed pattern
	var all []process
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it ended just now
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		_, rest, _ := strings.Cut(string(text), ") ") // after the name: state, parent, ...
		fields := strings.Fields(rest)
		if len(fields) < 15 {
			continue
		}
		number := func(i int) int { n, _ := strconv.Atoi(fields[i]); return n }
		all = append(all, process{
			pid: pid, parent: number(1),
			own:      time.Duration(number(11)+number(12)) * clockTick,
			children: time.Duration(number(13)+number(14)) * clockTick,
		})
	}
	if len(all) == 0 {
		return nil, errNoProc
	}
	return all, nil
}

// serverTime returns the processor time that a server's processes have used: the postmaster with this id, its children, and
// those of its children that have ended.
func serverTime(postmaster int) (time.Duration, error) {
	all, err := processes()
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	found := false
	for _, p := range all {
		switch {
		case p.pid == postmaster:
			found = true
			sum += p.own + p.children
		case p.parent == postmaster:
			sum += p.own
		}
	}
	if !found {
		return 0, fmt.Errorf("no process %d", postmaster)
	}
	return sum, nil
}

// namedTime returns the processor time of this process's living children of that name.
func namedTime(name string) (time.Duration, error) {
	all, err := processes()
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, p := range all {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.pid))
		if err == nil && p.parent == os.Getpid() && strings.TrimSpace(string(text)) == name {
			sum += p.own
		}
	}
	return sum, nil
}
