package main

import (
	"context"
	"fmt"
)

// journal is a table of every time that a partition was given to a session; a release to nobody is not one.
const journal = `CREATE TABLE public.given (lease text, partition int, before text, after text);
CREATE FUNCTION public.note_given() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.given VALUES (NEW.lease, NEW.partition, OLD.owner_id, NEW.owner_id);
    RETURN NULL;
END $$;
CREATE TRIGGER note_given AFTER UPDATE ON pgleases.partitions FOR EACH ROW
    WHEN (NEW.owner IS NOT NULL AND NEW.owner IS DISTINCT FROM OLD.owner) EXECUTE FUNCTION public.note_given()`

// measureMoves counts the partitions that change owner when members come and go.
func measureMoves(ctx context.Context, l *lab, out *part) error {
	size, partitions := l.pick(4, 10), l.pick(100, 1000)
	c, err := newCrew(ctx, l, size, partitions)
	if err != nil {
		return err
	}
	defer c.disband()
	if _, err := c.pool.Exec(ctx, journal); err != nil {
		return err
	}
	scenes := []struct {
		what string
		// do brings the change about, and returns the fewest moves with which it can be done.
		do func() (least int, err error)
	}{
		{"one more joins", func() (int, error) {
			_, err := c.add(ctx, "newcomer")
			return partitions / (size + 1), err
		}},
		{"one closes", func() (int, error) {
			least := len(c.members[size].Values())
			c.dismiss(size)
			return least, nil
		}},
		{"one closes and starts again", func() (int, error) { return c.restart(ctx, 0) }},
		{fmt.Sprintf("all %d close and start again, one after the other", size), func() (int, error) {
			all := 0
			for range size {
				least, err := c.restart(ctx, 0) // who restarts goes to the end
				if err == nil {
					err = c.settle(ctx)
				}
				if err != nil {
					return 0, err
				}
				all += least
			}
			return all, nil
		}},
	}
	for _, scene := range scenes {
		if err := c.count(ctx, out, scene.what, scene.do); err != nil {
			return fmt.Errorf("%s: %w", scene.what, err)
		}
	}
	out.note("%d clients, %s partitions. A restart needs two moves for each partition that the client owned: away, and back to it.", size, grouped(partitions))
	return nil
}

// restart closes a member and starts a client under its ID: what it owned goes, and comes back.
func (c *crew) restart(ctx context.Context, i int) (least int, err error) {
	id := c.members[i].id
	least = 2 * len(c.members[i].Values())
	c.dismiss(i)
	if err := c.settle(ctx); err != nil {
		return 0, err
	}
	_, err = c.add(ctx, id)
	return least, err
}

// count adds how many partitions a change moved, and how many are then with another client than before.
func (c *crew) count(ctx context.Context, out *part, what string, do func() (int, error)) error {
	_, err := c.pool.Exec(ctx, "TRUNCATE public.given; DROP TABLE IF EXISTS public.before; CREATE TABLE public.before AS TABLE pgleases.partitions")
	if err != nil {
		return err
	}
	least, err := do()
	if err != nil {
		return err
	}
	if err := c.settle(ctx); err != nil {
		return err
	}
	moved, err := one[int](ctx, c.pool, "SELECT count(*) FROM public.given")
	if err != nil {
		return err
	}
	elsewhere, err := one[int](ctx, c.pool, `SELECT count(*) FROM pgleases.partitions AS p
JOIN public.before AS b USING (lease, partition) WHERE p.owner_id <> b.owner_id`)
	if err != nil {
		return err
	}
	out.add(row{
		what:   "moves when " + what,
		figure: fmt.Sprintf("%s; with another client afterwards: %s", grouped(moved), grouped(elsewhere)),
		floors: []floor{{"the minimum", grouped(least), times(float64(moved) / float64(least))}},
		goal:   "the minimum",
		met:    judge(moved == least),
	})
	return nil
}
