package trial

// Reasons are a set of Whys.
type Reasons uint32

// whys are the reasons in the order of their bits.
var whys = [...]Why{Outside, SDKRetry, BeforeStep, NotAdmitted, PreTreatment, SwitchCost, NoThreshold, NotAsked,
	Withdrawn, Refused, Failed, Gateway, NotReady, Unknown, Crowded}

var (
	// whole are the reasons for which a request is in no trial at all.
	whole = Reasons(0).with(Outside).with(SDKRetry).with(BeforeStep)
	// told are the reasons that a Tick counts. What a request does not ask for is
	// told by its asks; refused and failed ones count for other guardrails.
	told = ^Reasons(0).with(NotAsked).with(Refused).with(Failed)
)

func (s Reasons) with(why Why) Reasons {
	for i := range whys {
		if whys[i] == why {
			return s | 1<<i
		}
	}
	return s
}

// Has reports whether why is one of them.
func (s Reasons) Has(why Why) bool { return s&Reasons(0).with(why) != 0 }
