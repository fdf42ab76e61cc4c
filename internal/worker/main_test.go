package worker_test

import (
	"testing"

	"github.com/pgleases/pgleases/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
