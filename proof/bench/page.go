package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// A page is everything that was measured in one run.
type page struct {
	system  []string
	command string
	took    time.Duration
	parts   []*part
}

// tables writes the tables alone.
func (p *page) tables() string {
	var b strings.Builder
	for i, part := range p.parts {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(part.table())
	}
	return b.String()
}

const plotFile = "growth.svg"

const introduction = `# Figures

What the library costs and how fast it is, as measured, also where it missed its goal. Each figure stands beside its floor, the least that
anybody would have to pay, or a rival; both are measured in the same run, most in turns, so that the ratio holds where the
figure itself depends on the machine. Client, harness and database share the machine's processors.

`

const growthText = `## How cost grows

What one heartbeat costs the server as clients, leases and partitions grow. A heartbeat reads one row for each lease that its client
joined, and none for partitions or other clients. What it writes to the log grows with the number of sessions, not with leases or
partitions.

![How the cost of a heartbeat grows with clients, leases and partitions](%s)

`

// write writes the page, and the plot beside it.
func (p *page) write(file string) error {
	var b strings.Builder
	b.WriteString(introduction)
	for _, line := range append(p.system, "command: `"+p.command+"`, "+duration(p.took.Round(time.Second))) {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	b.WriteString("\n" + p.tables())
	if curves := p.curves(); len(curves) > 0 {
		fmt.Fprintf(&b, "\n"+growthText, plotFile)
		b.WriteString(growthTable(curves))
		if err := os.WriteFile(beside(file, plotFile), []byte(growthPlot(curves)), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

func (p *page) curves() []curve {
	var all []curve
	for _, part := range p.parts {
		all = append(all, part.curves...)
	}
	return all
}

func growthTable(curves []curve) string {
	var b strings.Builder
	b.WriteString("| | | server's processor time a heartbeat | WAL a heartbeat | rows |\n|---|---|---|---|---|\n")
	for _, c := range curves {
		for _, p := range c.points {
			fmt.Fprintf(&b, "| %s | %s | %s | ", c.axis, grouped(p.x), duration(p.cost.processor))
			if p.cost.bytes > 0 {
				fmt.Fprintf(&b, "%s bytes | %s |\n", significant(p.cost.bytes), significant(p.cost.rows))
			} else {
				b.WriteString("| |\n")
			}
		}
	}
	return b.String()
}
