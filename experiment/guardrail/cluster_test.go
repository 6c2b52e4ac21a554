package guardrail

import (
	"math"
	"math/rand/v2"
	"testing"
)

// population are users with their own mean cost and their own number of
// requests: what makes the requests of a user alike. lift raises every cost.
func population(r *rand.Rand, users int, lift float64) (n, x []float64) {
	for range users {
		requests := 1 + math.Floor(r.ExpFloat64()*8)
		each := math.Exp(0.8*r.NormFloat64()) * (1 + lift)
		sum := 0.0
		for range int(requests) {
			sum += each * (0.5 + r.ExpFloat64()/2)
		}
		n, x = append(n, requests), append(x, sum)
	}
	return n, x
}

// groupsOf sums the users by group, as replicas do that each see a part of them.
func groupsOf(r *rand.Rand, n, x []float64, groups int) Moments {
	sn, sx := make([]float64, groups), make([]float64, groups)
	for i := range n {
		g := r.IntN(groups)
		sn[g] += n[i]
		sx[g] += x[i]
	}
	m := Moments{Units: int64(len(n))}
	for g := range groups {
		if sn[g] > 0 {
			m.Clusters++
			m.N += sn[g]
			m.X += sx[g]
			m.NN += sn[g] * sn[g]
			m.NX += sn[g] * sx[g]
			m.XX += sx[g] * sx[g]
		}
	}
	return m
}

func unitsOf(n, x []float64) (m Moments) {
	for i := range n {
		m.Observe(0, 0, n[i], x[i])
	}
	return m
}

// TestClustersAgree: the variance from 256 groups of users is that from users, in
// expectation, and the ratio is the same.
func TestClustersAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, users := range []int{150, 1000, 5000} {
		const runs = 300
		byUnit, byGroup := 0.0, 0.0
		for range runs {
			n, x := population(r, users, 0)
			u, g := unitsOf(n, x), groupsOf(r, n, x, 256)
			ru, vu, okU := u.ratio()
			rg, vg, okG := g.ratio()
			if !okU || !okG || math.Abs(ru-rg) > 1e-9*ru {
				t.Fatalf("%d users: ratio %v and %v (%v, %v)", users, ru, rg, okU, okG)
			}
			byUnit += vu / runs
			byGroup += vg / runs
		}
		if q := byGroup / byUnit; math.Abs(q-1) > 0.05 {
			t.Errorf("%d users: variance by groups is %.3f of that by users", users, q)
		}
	}
}

// TestClusterCoverage: looked at every 150 users, a mean that is at its limit
// fails falsely no more often than it may, and one well beyond it is found.
func TestClusterCoverage(t *testing.T) {
	const runs, most, alpha = 200, 3000, 0.05
	g := DefaultGates(alpha, alpha, 1, 1)
	test, err := NewMeanTest(Config{Name: "cost", Metric: CostPerRequest, Kind: Mean, Action: ActionRollback, Require: RequireNoFail, MaxLift: 0.2}, g)
	if err != nil {
		t.Fatal(err)
	}
	fails := func(r *rand.Rand, lift float64) (n int) {
		for range runs {
			cn, cx := population(r, most, lift)
			bn, bx := population(r, most, 0)
			seed := r.Uint64()
			for k := 150; k <= most; k += 150 {
				// The same user is in the same group at every look.
				canary := groupsOf(rand.New(rand.NewPCG(seed, 1)), cn[:k], cx[:k], 256)
				baseline := groupsOf(rand.New(rand.NewPCG(seed, 2)), bn[:k], bx[:k], 256)
				if test.Verdict(canary, baseline, Conditions{}).Decision == Fail {
					n++
					break
				}
			}
		}
		return n
	}
	r := rand.New(rand.NewPCG(3, 4))
	if n := fails(r, 0.2); float64(n) > alpha*runs {
		t.Errorf("%d of %d at the limit fail in %d looks, want at most %v", n, runs, most/150, alpha*runs)
	} else {
		t.Logf("at the limit: %d of %d fail in %d looks", n, runs, most/150)
	}
	if n := fails(r, 0.5); n < runs*9/10 {
		t.Errorf("only %d of %d with 50 %% more than the baseline are found", n, runs)
	}
}
