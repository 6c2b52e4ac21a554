package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// free renders any YAML as JSON, keeping the digits of numbers.
func (d *decoder) free(n *node, path string) []byte {
	var b bytes.Buffer
	d.writeFree(&b, n, path)
	return b.Bytes()
}

func (d *decoder) writeFree(b *bytes.Buffer, n *node, path string) {
	switch n.kind {
	case nullNode:
		b.WriteString("null")
	case mappingNode:
		b.WriteByte('{')
		for i, k := range n.keys {
			if i > 0 {
				b.WriteByte(',')
			}
			writeString(b, k.text)
			b.WriteByte(':')
			d.writeFree(b, n.items[i], join(path, k.text))
		}
		b.WriteByte('}')
	case listNode:
		b.WriteByte('[')
		for i, item := range n.items {
			if i > 0 {
				b.WriteByte(',')
			}
			d.writeFree(b, item, fmt.Sprintf("%s[%d]", path, i))
		}
		b.WriteByte(']')
	default:
		d.writeScalar(b, n, path)
	}
}

func (d *decoder) writeScalar(b *bytes.Buffer, n *node, path string) {
	switch n.tag {
	case "!!bool":
		b.WriteString(strings.ToLower(n.text))
	case "!!int", "!!float":
		if json.Valid([]byte(n.text)) {
			b.WriteString(n.text)
			return
		}
		plain := strings.TrimPrefix(strings.ReplaceAll(n.text, "_", ""), "+")
		if i, ok := new(big.Int).SetString(plain, 0); ok && len(plain) < 100 {
			b.WriteString(i.String())
			return
		}
		if f, err := strconv.ParseFloat(plain, 64); err == nil && f-f == 0 {
			b.WriteString(strconv.FormatFloat(f, 'g', -1, 64))
			return
		}
		d.want(n, path, "a number that JSON can hold")
		b.WriteString("null")
	default:
		writeString(b, n.text)
	}
}

func writeString(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	b.Truncate(b.Len() - 1)
}
