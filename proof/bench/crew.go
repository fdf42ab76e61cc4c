package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A crew is a number of members of one lease in this process, and what they own.
type crew struct {
	url        string // as the clients connect
	direct     string // as the harness does
	partitions int
	ttl        time.Duration // 0: the default
	members    []*member
	census     *census
	pool       *pgxpool.Pool
	drop       func()
}

const crewLease = "work"

// newCrew has so many members share a lease in a database of its own.
func newCrew(ctx context.Context, l *lab, size, partitions int) (*crew, error) {
	url, drop, err := newDatabase(ctx, l.fast)
	if err != nil {
		return nil, err
	}
	c := &crew{url: url, partitions: partitions, census: newCensus(), drop: drop}
	if c.pool, err = newPool(ctx, url); err == nil {
		err = c.enlist(ctx, size)
	}
	if err != nil {
		c.disband()
		return nil, err
	}
	return c, nil
}

// enlist adds so many members, and waits until they share.
func (c *crew) enlist(ctx context.Context, size int) error {
	for i := range size {
		if _, err := c.add(ctx, fmt.Sprintf("client-%02d", i)); err != nil {
			return err
		}
	}
	return c.settle(ctx)
}

// add has a client join.
func (c *crew) add(ctx context.Context, id string) (*member, error) {
	m, err := join(ctx, member{url: c.url, id: id, lease: crewLease, partitions: c.partitions, ttl: c.ttl})
	if err == nil {
		c.members = append(c.members, m)
		c.census.watch(m)
	}
	return m, err
}

// dismiss closes a member.
func (c *crew) dismiss(i int) {
	m := c.members[i]
	c.members = append(c.members[:i:i], c.members[i+1:]...)
	m.close()
}

// settle waits until the shares are even and nothing is on its way.
func (c *crew) settle(ctx context.Context) error {
	if _, err := c.census.until(ctx, "even shares", balanced(len(c.members), c.partitions)); err != nil {
		return err
	}
	return atRest(ctx, c.pool, crewLease)
}

func (c *crew) disband() {
	for _, m := range c.members {
		m.close()
	}
	if c.pool != nil {
		c.pool.Close()
	}
	c.drop()
}
