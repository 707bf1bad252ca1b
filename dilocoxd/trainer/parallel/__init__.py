"""The mesh of a site's trainers: where each rank stands, and how a stage lies in parts."""
