package webhook

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sluice/experiment/ramp"
)

// payload is the body of format json.
type payload struct {
	ID        string    `json:"id"`
	Type      string    `json:"type"`      // rollout.rolled_back
	Timestamp time.Time `json:"timestamp"` // of the event
	Data      data      `json:"data"`
}

type data struct {
	ramp.Notice
	Title string `json:"title"` // a few words
	Links *links `json:"links,omitempty"`
}

type links struct {
	Experiment string `json:"experiment"`
}

// body writes m in the format that was asked for.
func (s *Sender) body(m *message) ([]byte, error) {
	link := s.link(m.n.Experiment)
	if s.o.Format == Slack {
		return json.Marshal(slack(&m.n, link))
	}
	p := payload{ID: m.id, Type: "rollout." + m.n.Event, Timestamp: m.n.At, Data: data{Notice: m.n, Title: title(&m.n)}}
	if link != "" {
		p.Data.Links = &links{link}
	}
	return json.Marshal(p)
}

func (s *Sender) link(experiment string) string {
	if s.o.Link == "" {
		return ""
	}
	return strings.TrimRight(s.o.Link, "/") + "/ui/experiments/" + url.PathEscape(experiment)
}

var titles = map[string]string{
	ramp.NoticeStarted: "started", ramp.NoticeAdvanced: "advanced", ramp.NoticeHeld: "holds", ramp.NoticeApproval: "waits for approval",
	ramp.NoticePaused: "paused", ramp.NoticeResumed: "resumed", ramp.NoticeRolledBack: "rolled back", ramp.NoticePromoted: "promoted",
	ramp.NoticeCompleted: "completed", ramp.NoticeKilled: "killed", ramp.NoticeSRM: "sample ratio mismatch", ramp.NoticeBudget: "budget",
}

// title is "chat-v2: canary advanced, at 5 %".
func title(n *ramp.Notice) string {
	var b strings.Builder
	b.WriteString(n.Experiment + ": ")
	if n.Variant != "" {
		b.WriteString(n.Variant + " ")
	}
	if t := titles[n.Event]; t != "" {
		b.WriteString(t)
	} else {
		b.WriteString(n.Event)
	}
	if n.Weight > 0 {
		b.WriteString(", at " + strconv.FormatFloat(float64(n.Weight)/100, 'f', -1, 64) + " %")
	}
	return b.String()
}

// slackBody is what incoming webhooks take: text for notifications and for those
// that know no blocks.
type slackBody struct {
	Text   string       `json:"text"`
	Blocks []slackBlock `json:"blocks"`
}

type slackBlock struct {
	Type     string      `json:"type"`
	Text     *slackText  `json:"text,omitempty"`
	Elements []slackText `json:"elements,omitempty"`
}

type slackText struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// maxSlack is what a section's text may have, in characters.
const maxSlack = 3000

// escapeSlack keeps names and reasons from becoming mentions and links.
var escapeSlack = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

var marks = map[string]string{
	ramp.NoticeRolledBack: ":rotating_light: ", ramp.NoticeKilled: ":rotating_light: ", ramp.NoticePaused: ":warning: ",
	ramp.NoticeSRM: ":warning: ", ramp.NoticeApproval: ":raised_hand: ", ramp.NoticePromoted: ":white_check_mark: ",
}

func slack(n *ramp.Notice, link string) slackBody {
	head, text := escapeSlack.Replace(title(n)), escapeSlack.Replace(n.Text)
	said := marks[n.Event] + "*" + head + "*"
	if text != "" {
		said += "\n" + text
	}
	if n.Reason != "" {
		said += "\n>" + strings.ReplaceAll(escapeSlack.Replace(n.Reason), "\n", "\n>")
	}
	about := []string{fmt.Sprintf("generation %d", n.Generation)}
	if n.Steps > 0 && n.Step >= 0 {
		about = append(about, fmt.Sprintf("step %d of %d", n.Step+1, n.Steps))
	}
	if n.Actor != "" {
		about = append(about, "by "+escapeSlack.Replace(n.Actor))
	}
	if link != "" {
		about = append(about, "<"+link+"|open>")
	}
	return slackBody{Text: clip(head + ": " + text), Blocks: []slackBlock{
		{Type: "section", Text: &slackText{"mrkdwn", clip(said)}},
		{Type: "context", Elements: []slackText{{"mrkdwn", clip(strings.Join(about, " · "))}}},
	}}
}

func clip(s string) string {
	r := []rune(s)
	if len(r) <= maxSlack {
		return s
	}
	return string(r[:maxSlack-1]) + "…"
}
