package config

import (
	"slices"
	"strings"
)

// Suggest returns the candidate nearest to word by Damerau-Levenshtein
// distance (two edits at most, one for words of up to three letters), "" when
// none is near.
func Suggest(word string, candidates []string) string {
	limit := 2
	if len(word) <= 3 {
		limit = 1
	}
	if len(word) > 64 {
		return ""
	}
	best, bestAt := "", limit+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), strings.ToLower(c)); d < bestAt {
			best, bestAt = c, d
		}
	}
	return best
}

// distance is the optimal string alignment distance: insertions, deletions,
// substitutions and swaps of neighbours cost 1.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	if d := len(x) - len(y); d > 2 || d < -2 {
		return 3
	}
	var two []int
	one := make([]int, len(y)+1)
	for j := range one {
		one[j] = j
	}
	for i := 1; i <= len(x); i++ {
		row := make([]int, len(y)+1)
		row[0] = i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			row[j] = min(one[j]+1, row[j-1]+1, one[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], two[j-2]+1)
			}
		}
		two, one = one, row
	}
	return one[len(y)]
}

// unknown words the message for a name that is none of known.
func unknown(what, name string, known []string) string {
	msg := "unknown " + what + " `" + clip(name) + "`"
	if s := Suggest(name, known); s != "" {
		return msg + ", did you mean `" + s + "`?"
	}
	if len(known) == 0 {
		return msg
	}
	sorted := slices.Sorted(slices.Values(known))
	return msg + "; known here: " + strings.Join(sorted, ", ")
}
