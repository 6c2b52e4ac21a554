package admin

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// PageIn are the parameters of every list. Like the other structs that inputs
// embed it is exported, because huma passes over embedded ones that are not.
type PageIn struct {
	Cursor string `query:"cursor" maxLength:"1024" doc:"next_cursor of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"items in an answer"`
}

func badCursor() error {
	return field(http.StatusUnprocessableEntity, "invalid_cursor", "query.cursor", "cursor is none that this API gave out; begin again without it")
}

// before is the cursor of a list that is paged by a number.
func (p PageIn) before() (int64, error) {
	if p.Cursor == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(p.Cursor, 36, 64)
	if err != nil || n <= 0 {
		return 0, badCursor()
	}
	return n, nil
}

// pageOf answers one page of a list in memory in the order of key, which is
// unique. It is stable while items come and go.
func pageOf[T any](items []T, key func(*T) string, p PageIn) (page []T, next string, err error) {
	after := ""
	if p.Cursor != "" {
		raw, err := base64.RawURLEncoding.DecodeString(p.Cursor)
		if err != nil || len(raw) == 0 {
			return nil, "", badCursor()
		}
		after = string(raw)
	}
	all := slices.Clone(items)
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(key(&a), key(&b)) })
	page = []T{}
	for i := range all {
		k := key(&all[i])
		if k <= after {
			continue
		}
		if len(page) == p.Limit {
			last := key(&page[len(page)-1])
			return page, base64.RawURLEncoding.EncodeToString([]byte(last)), nil
		}
		page = append(page, all[i])
	}
	return page, "", nil
}
